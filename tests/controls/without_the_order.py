"""Jobs with a key are inserted in the order in which they were added."""

from magik_sa import enqueue

from . import replace


def take_out() -> None:
    replace(enqueue, "_order", lambda _: None)
