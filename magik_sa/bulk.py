"""Many jobs at once: a few thousand a statement, in the caller's transaction, checked as by a flush.

What a flush does with jobs (`enqueue`) is done here for a chunk of them: what was changed in place is settled, keys are
put in the one order for everybody, the INSERT passes over repeats and one SELECT finds them. The jobs stay transient: a
million of them, out of a generator, take the memory of one chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, overload

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session, class_mapper, scoped_session
from sqlalchemy.orm.attributes import instance_state

from . import successor
from .alike import Alike, insert_alike
from .attribute import settle
from .chunk import Given, ask_for_moments, at, chunks, insert, iterated, refused
from .enqueue import UnknownJob, repeats
from .errors import EnqueueError
from .job import REPEAT, Job
from .named import named
from .unnest import INSERT, parameters, row_of
from .writing import connection_of, session_of


@overload
def bulk_enqueue(session: Session | scoped_session[Any], jobs: Iterable[Job], *, wake: bool = True) -> int: ...
@overload
def bulk_enqueue(
    session: Session | scoped_session[Any],
    jobs: type[Job],
    arguments: Iterable[Mapping[str, Any]],
    *,
    wake: bool = True,
    queue: str | None = None,
    priority: int | None = None,
    run_at: datetime | ColumnElement[datetime] | None = None,
    delay: str | timedelta | None = None,
) -> int: ...
@named
def bulk_enqueue(
    session: Session | scoped_session[Any],
    jobs: Iterable[Job] | type[Job],
    arguments: Iterable[Mapping[str, Any]] | None = None,
    *,
    wake: bool = True,
    queue: str | None = None,
    priority: int | None = None,
    run_at: Any = None,
    delay: str | timedelta | None = None,
) -> int:
    """Add many new jobs in the transaction of `session`; how many were inserted.

    `jobs` are of any classes. Or it is one class, and `arguments` are those of its jobs: a few times as fast, as no
    object is made of each; `queue`, `priority`, `run_at` and `delay` are then those of all. Both are read as they go.

    A repeat of a live job's key is passed over, and `is_repeat` and `repeat_of` say so. With ``wake=False`` no worker
    is woken: the jobs wait for the next poll. In `perform`, a job of the key that is being performed is added at the
    end of that job, and not counted.

    Raises `EnqueueError` that names the position of what cannot be added, before anything of its chunk is written.
    """
    into = session_of(session)
    options = {"queue": queue, "priority": priority, "run_at": run_at, "delay": delay}
    if not isinstance(jobs, type):
        for name in [name for name, value in {"arguments": arguments, **options}.items() if value is not None]:
            raise refused(name, "goes with a class of jobs, and jobs were given")
        return _add(into, ((f"jobs[{n}]", job) for n, job in enumerate(iterated(jobs, "jobs"))), wake)
    alike = Alike(jobs, options)
    given = iterated(arguments, "arguments")  # type: ignore[arg-type]
    return _add_alike(into, alike, given, wake) if alike.are_plain else _add(into, alike.built(given), wake)


def _add(session: Session, jobs: Iterable[tuple[str, Job]], wake: bool) -> int:
    inserted = 0
    for chunk in chunks(_given(place, job) for place, job in jobs):
        _flush_what_was_added_before(session)
        connection, new = connection_of(session), [each for each in chunk if not successor.held(session, each.job)]
        ask_for_moments(connection, new)
        new.sort(key=lambda given: given.key)
        there = insert(connection, INSERT, parameters([given.row for given in new]), wake) if new else 0
        _tell_repeats(session, new, there)
        inserted += there
    return inserted


def _add_alike(session: Session, alike: Alike, arguments: Iterator[Mapping[str, Any]], wake: bool) -> int:
    inserted = 0
    for template, rows in alike.rows(arguments):
        _flush_what_was_added_before(session)
        inserted += insert_alike(connection_of(session), template, rows, wake)
    return inserted


def _flush_what_was_added_before(session: Session) -> None:
    if session.autoflush:
        session.flush()


def _given(place: str, job: Job) -> Given:
    """The row of a job, checked as `session.add` and a flush would."""
    if why := _unfit(job):
        raise refused(place, why)
    try:
        settle(job)
        return Given(place, job, row_of(job))
    except EnqueueError as error:
        raise at(place, error) from None


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


def _tell_repeats(session: Session, chunk: list[Given], inserted: int) -> None:
    for given in chunk:
        vars(given.job).pop(REPEAT, None)
    if inserted < len(chunk):
        for job, live in repeats(session, [given.job for given in chunk if given.job.key_digest is not None]):
            vars(job)[REPEAT] = live
