"""A claim does not ask whether its queue is paused."""

from magik_sa.claim import walk
from magik_sa.priorities import PAUSED

from . import without, work


def take_out() -> None:
    walk.WALK = without(walk.WALK, f"WHERE NOT {PAUSED}")


if __name__ == "__main__":
    take_out()
    work()
