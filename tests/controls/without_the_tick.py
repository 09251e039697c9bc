"""The claim of a tick does not say which: whoever has seen the schedule due takes it."""

from magik_sa import recurring

from . import without, work

if __name__ == "__main__":
    tick = "AND CAST(extract(epoch FROM next_run_at) AS text) = :tick AND next_run_at <= now()"
    recurring.CLAIM = without(recurring.CLAIM, tick)
    work()
