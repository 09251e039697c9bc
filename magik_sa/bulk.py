"""Many jobs at once: a few thousand a statement, in the caller's transaction, checked as by a flush.

What a flush does with jobs (`enqueue`) is done here for a chunk of them: what was changed in place is settled, keys are
put in the one order for everybody, the INSERT passes over repeats and one SELECT finds them. The jobs stay transient: a
million of them, out of a generator, take the memory of one chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, DateTime, cast, select
from sqlalchemy.orm import Session, class_mapper, scoped_session
from sqlalchemy.orm.attributes import instance_state

from . import successor
from .attribute import settle
from .enqueue import UnknownJob, repeats
from .errors import EnqueueError
from .job import REPEAT, Job
from .setting import setting
from .storable import invalid
from .unnest import INSERT, Row, instant, open_moment, parameters, row_of
from .writing import connection_of, session_of

CHUNK_ROWS: Final = 2_000
CHUNK_BYTES: Final = 4 * 2**20  # of JSON: one job alone may have 256 KiB
MOST_MOMENTS: Final = 500  # in one SELECT, which may have 1,664 columns

QUIET: Final = ("magik_sa.wake", "off")  # what the triggers that wake workers look at


class Given(NamedTuple):
    """One of the jobs that were given, at its place among them, and the row that is to be made of it."""

    position: int
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


def bulk_enqueue(session: Session | scoped_session[Any], jobs: Iterable[Job], wake: bool = True) -> int:
    """Add many new jobs, of any classes, in the transaction of `session`; how many were inserted.

    `jobs` is read as it goes. A repeat of a live job's key is passed over, and `is_repeat` and `repeat_of` say so. With
    ``wake=False`` no worker is woken: the jobs wait for the next poll. In `perform`, a job of the key that is being
    performed is added at the end of that job, and not counted.

    Raises `EnqueueError` that names the position of what cannot be added, before anything of its chunk is written.
    """
    into, inserted = session_of(session), 0
    for chunk in _chunks(jobs):
        if into.autoflush:  # what was added before is inserted before
            into.flush()
        connection, new = connection_of(into), [given for given in chunk if not successor.held(into, given.job)]
        _ask_for_moments(connection, new)
        inserted += _insert(into, connection, sorted(new, key=lambda given: given.key), wake)
    return inserted


def _chunks(jobs: Iterable[Job]) -> Iterator[list[Given]]:
    chunk: list[Given] = []
    size = 0
    for position, job in enumerate(_iterated(jobs)):
        chunk.append(given := _given(position, job))
        size += given.size
        if len(chunk) >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _iterated(jobs: Iterable[Job]) -> Iterator[Job]:
    if not isinstance(jobs, Iterable):
        raise EnqueueError("MAGIK_NOT_ENQUEUEABLE", f"jobs: a {type(jobs).__name__} is no iterable.", field="jobs")
    return iter(jobs)


def _given(position: int, job: Job) -> Given:
    """The row of a job, checked as `session.add` and a flush would."""
    if why := _unfit(job):
        raise EnqueueError("MAGIK_NOT_ENQUEUEABLE", f"jobs[{position}] {why}.", field=f"jobs[{position}]")
    try:
        settle(job)
        return Given(position, job, row_of(job))
    except EnqueueError as error:
        raise _at(position, error) from None


def _at(position: int, error: EnqueueError) -> EnqueueError:
    return EnqueueError(error.code, f"jobs[{position}]: {error.what}", field=error.field)


def _unfit(job: object) -> str | None:
    if not isinstance(job, Job):
        return f"is a {type(job).__name__} and no job"
    if isinstance(job, UnknownJob):
        return "is of a class that is not declared in this process"
    if not instance_state(job).transient:
        return "is, or was, in a Session"
    if len(class_mapper(type(job)).tables) > 1:
        return f"is a {type(job).__name__}, which has a table of its own"
    return None


def _ask_for_moments(connection: Connection, chunk: list[Given]) -> None:
    """Have the server say what the SQL expressions in `run_at` come to."""
    asked = [given for given in chunk if open_moment(given.row, given.job) is not None]
    for start in range(0, len(asked), MOST_MOMENTS):
        some = asked[start : start + MOST_MOMENTS]
        moments = (cast(open_moment(given.row, given.job), DateTime(timezone=True)) for given in some)
        found = connection.execute(select(*moments)).all()
        for given, moment in zip(some, found[0] if len(found) == 1 else [None] * len(some), strict=True):
            if moment is None:
                raise _at(given.position, invalid("run_at", "is an SQL expression that gives no time"))
            given.row["run_at"] = instant(moment)


def _insert(session: Session, connection: Connection, chunk: list[Given], wake: bool) -> int:
    rows = parameters([given.row for given in chunk])
    with nullcontext() if wake else setting(connection, *QUIET):
        inserted: int = connection.execute(INSERT, rows).rowcount
    for given in chunk:
        vars(given.job).pop(REPEAT, None)
    if inserted < len(chunk):
        for job, live in repeats(session, [given.job for given in chunk if given.job.key_digest is not None]):
            vars(job)[REPEAT] = live
    return inserted
