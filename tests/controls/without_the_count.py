"""Who finds the note of a run that was interrupted does not count it."""

from magik_sa import run

from . import replace


def take_out() -> None:
    replace(run, "interruption", lambda _: None)
