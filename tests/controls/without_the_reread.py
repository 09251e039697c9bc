"""The re-read looks at the walk's own snapshot, which is older than the locks: it tells nothing new."""

from collections.abc import Collection
from typing import Any

from magik_sa.claim import Batch, Busy, Claims

from . import replace, work

original = Claims.claim


def claim(self: Claims, queue: str, n: int, known: Collection[str], busy: Busy, *more: Any) -> Batch:
    self.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    try:
        return original(self, queue, n, known, busy, *more)
    finally:
        self.connection.execute("COMMIT")


def take_out() -> None:
    replace(Claims, "claim", claim)


if __name__ == "__main__":
    take_out()
    work()
