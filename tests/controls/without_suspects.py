"""Jobs that may have killed their worker start beside each other, all at once."""

from magik_sa.worker.suspects import Suspects

from . import replace


def take_out() -> None:
    replace(Suspects, "seconds", lambda self, _: 0.0 if len(self) else None)
