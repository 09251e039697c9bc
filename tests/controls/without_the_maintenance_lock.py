"""A worker whose maintenance does not ask whether another worker is at it."""

from __future__ import annotations

from magik_sa.worker import maintenance
from tests.controls import replace, without, work


def take_out() -> None:
    """The lock is as good as got."""
    replace(maintenance, "TRY", without(maintenance.TRY, maintenance.TRY, "SELECT CAST(:place AS text) IS NOT NULL"))


if __name__ == "__main__":
    take_out()
    work()
