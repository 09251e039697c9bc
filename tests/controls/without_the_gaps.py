"""Only a full walk looks for priorities that the worker does not know, and none is made because it is time for one."""

from magik_sa.claim import marks, walk

from . import replace, without, work

GAP = "j.priority < k.next"


def take_out() -> None:
    walk.WALK = without(walk.WALK, GAP, f"{GAP} AND %(full)s")
    replace(marks, "FULL_EVERY", 3600)


if __name__ == "__main__":
    take_out()
    work()
