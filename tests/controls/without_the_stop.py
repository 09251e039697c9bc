"""A worker that is told to stop claims on for as long as there are jobs."""

from magik_sa.worker.locker import Locker

from . import replace


def over(self: Locker) -> bool:
    return self._stopping and not self.book and not self._claim_round()


def take_out() -> None:
    replace(Locker, "_over", over)
