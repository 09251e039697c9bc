"""The claim of a tick does not say which: whoever has seen the schedule due takes it."""

from magik_sa import ticks, tries

from . import without, work

TICK = "AND CAST(extract(epoch FROM next_run_at) AS text) = :tick AND next_run_at <= now()"


def take_out() -> None:
    ticks.CLAIM = without(ticks.CLAIM, TICK)
    tries.TRY = without(tries.TRY, TICK)  # type: ignore[misc]


if __name__ == "__main__":
    take_out()
    work()
