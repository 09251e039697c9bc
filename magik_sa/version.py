"""The counter of a job's writes, which goes round: after the last number that its column holds comes 1.

It only has to be another than before. A row that SQL has written may be at the end of it, and its outcome is written
all the same.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, ColumnElement, case

LAST: Final = 2**31 - 1

# SQLSTATEs of our own, of a write that has met no row: it is of another version by now, or it is not and stays.
CHANGED_HANDS: Final = "MGK01"
KEPT: Final = "MGK02"


def following(version: int | None) -> int:
    """The version after this one; of a row that is not there yet, the first."""
    return 1 if version is None or version >= LAST else version + 1


def raised(column: Column[int]) -> ColumnElement[int]:
    """The same as SQL."""
    return case((column == LAST, 1), else_=column + 1)
