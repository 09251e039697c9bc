"""The walk without OFFSET 0: a plan that sorts tries the lock of every row before it returns one."""

from magik_sa import claim

from . import without, work

if __name__ == "__main__":
    claim.WALK = without(claim.WALK, "OFFSET 0")
    work()
