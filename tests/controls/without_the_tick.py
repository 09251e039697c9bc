"""The claim of a tick does not say which: whoever has seen the schedule due takes it."""

from magik_sa import recurring

from . import without, work

if __name__ == "__main__":
    recurring.CLAIM = without(recurring.CLAIM, "AND extract(epoch FROM next_run_at) = :tick AND next_run_at <= now()")
    work()
