"""The walk without OFFSET 0: a plan that sorts tries the lock of every row before it returns one."""

from magik_sa.claim import walk

from . import without, work


def take_out() -> None:
    walk.WALK = without(walk.WALK, "OFFSET 0")


if __name__ == "__main__":
    take_out()
    work()
