"""A worker that waits does not ask for the time of the next job."""

from magik_sa import wake

from . import replace


def take_out() -> None:
    replace(wake, "seconds_to_next", lambda *_: None)
