"""A run takes over whatever version of its row it happens to load."""

from magik_sa import fence

from . import replace


def take_out() -> None:
    replace(fence, "set_committed_value", lambda *_: None)
