"""New jobs on their way into the table, a few thousand at a time: what all of `bulk_enqueue` has in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Final, NamedTuple, TypeVar

from sqlalchemy import Connection, DateTime, Insert, cast, select

from .errors import EnqueueError
from .job import Job
from .setting import setting
from .storable import invalid
from .unnest import Parameters, Row, instant, open_moment

ROWS: Final = 2_000
BYTES: Final = 4 * 2**20  # of JSON: one job alone may have 256 KiB
MOST_MOMENTS: Final = 500  # in one SELECT, which may have 1,664 columns

QUIET: Final = ("magik_sa.wake", "off")  # what the triggers that wake workers look at

CORRECT: Final = (
    "Correct it. Of its chunk nothing was written; what was given before may stand in your transaction: roll that back."
)

T = TypeVar("T")


class Given(NamedTuple):
    """One of the jobs that were given, its place among them, and the row that is to be made of it."""

    place: str
    job: Job
    row: Row

    @property
    def size(self) -> int:
        """Characters of JSON."""
        return len(self.row["args"] or "") + len(self.row["context"] or "")

    @property
    def key(self) -> tuple[str, bytes]:
        """What a chunk is sorted by: two transactions that insert the same keys then wait for each other in turn."""
        return self.job.job_class, self.job.key_digest or b""


def iterated(given: Iterable[T], field: str) -> Iterator[T]:
    """What was given for `field`, one by one."""
    if not isinstance(given, Iterable):
        raise refused(field, f"is a {type(given).__name__} and no iterable")
    return iter(given)


def chunks(given: Iterable[Given]) -> Iterator[list[Given]]:
    """As many at a time as one statement takes."""
    chunk: list[Given] = []
    size = 0
    for each in given:
        chunk.append(each)
        size += each.size
        if is_full(len(chunk), size):
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def is_full(rows: int, size: int) -> bool:
    """Whether one statement takes no more than so many rows, and bytes of JSON in them."""
    return rows >= ROWS or size >= BYTES


def insert(connection: Connection, statement: Insert, values: Parameters, wake: bool) -> int:
    """Insert rows; how many there are now that were not there before."""
    with nullcontext() if wake else setting(connection, *QUIET):
        inserted: int = connection.execute(statement, values).rowcount
    return inserted


def ask_for_moments(connection: Connection, chunk: list[Given]) -> None:
    """Have the server say what the SQL expressions in `run_at` come to."""
    asked = [given for given in chunk if open_moment(given.row, given.job) is not None]
    for start in range(0, len(asked), MOST_MOMENTS):
        some = asked[start : start + MOST_MOMENTS]
        moments = (cast(open_moment(given.row, given.job), DateTime(timezone=True)) for given in some)
        found = connection.execute(select(*moments)).all()
        for given, moment in zip(some, found[0] if len(found) == 1 else [None] * len(some), strict=True):
            if moment is None:
                raise at(given.place, invalid("run_at", "is an SQL expression that gives no time"))
            given.row["run_at"] = instant(moment)


def at(place: str, error: EnqueueError) -> EnqueueError:
    """The same error of what stands there."""
    return EnqueueError(error.code, f"{place}: {error.what}", field=error.field, remedy=CORRECT)


def refused(place: str, why: str) -> EnqueueError:
    """The error for what is no job to be added."""
    return EnqueueError("MAGIK_NOT_ENQUEUEABLE", f"{place} {why}.", field=place)
