"""Enqueueing: what a flush does with jobs beside their INSERT.

Before it, jobs with a key are put in one order for everybody: two transactions that insert the same keys in
opposite order wait for each other. The INSERT itself passes over repeats (`table.JobTable`), so that the unique
index decides, which waits until it knows how another open transaction ends. After it one SELECT tells which jobs
were passed over; they leave the Session. Nothing is remembered outside the database.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from sqlalchemy import event, inspect, select
from sqlalchemy.orm import ORMExecuteState, Session, UOWTransaction, make_transient

from . import committed as committed
from .attribute import settle
from .errors import EnqueueError
from .job import REPEAT, Job, declared, metadata
from .unknown import UnknownJob

__all__ = ["Job", "UnknownJob", "declared", "metadata"]

_REPEATS: Final = "magik_repeats"
_MOST_KEYS: Final = 5_000  # in one SELECT: a statement takes 65,535 parameters on psycopg and 32,767 on asyncpg

_WRITING: Final = {"mapper": Job.__mapper__, "clause": Job.__table__.insert()}  # not where an application's reads go

Key = tuple[str, bytes]


@event.listens_for(Session, "before_flush")
def _prepare(session: Session, _: UOWTransaction, __: Any) -> None:
    _refuse_unknown(session)
    new = [job for job in session.new if isinstance(job, Job)]
    for job in new:
        vars(job).pop(REPEAT, None)
    for job in [*new, *(job for job in session.dirty if isinstance(job, Job))]:
        settle(job)
    _order([job for job in new if job.key_digest is not None])


def _refuse_unknown(session: Session) -> None:
    changed = (job for job in session.dirty if isinstance(job, UnknownJob) and session.is_modified(job))
    deleted = (job for job in session.deleted if isinstance(job, UnknownJob))
    for job in (*changed, *deleted):
        raise job.read_only()


def _order(keyed: list[Job]) -> None:
    """Have the flush insert jobs with a key by (class, digest): deal the places that they hold among them anew."""
    states = [inspect(job) for job in sorted(keyed, key=_key)]
    for state, place in zip(states, sorted(state.insert_order or 0 for state in states), strict=True):
        state.insert_order = place


@event.listens_for(Session, "after_flush")
def _find_repeats(session: Session, flush: UOWTransaction) -> None:
    """Ask which of the keyed jobs are there now. A key whose live job has another id was passed over."""
    flushed = (job for job in session.new if isinstance(job, Job) and inspect(job) in flush.states)
    keyed = [job for job in flushed if job.key_digest is not None]
    if keyed:
        live = _live(session, sorted({_key(job) for job in keyed}))
        flush.attributes[_REPEATS] = [(job, live.get(_key(job))) for job in keyed if live.get(_key(job)) != job.id]


def _live(session: Session, keys: list[Key]) -> dict[Key, UUID]:
    """The ids of the live jobs with these keys, seen from the transaction of the flush."""
    connection, live = session.connection(bind_arguments=_WRITING), {}
    for start in range(0, len(keys), _MOST_KEYS):
        classes, digests = zip(*keys[start : start + _MOST_KEYS], strict=True)
        found = select(Job.id, Job.job_class, Job.key_digest).where(
            Job.job_class.in_(set(classes)),
            Job.key_digest.in_(digests),
            Job.finished_at.is_(None),
            Job.expired_at.is_(None),
        )
        live.update({(name, digest): id for id, name, digest in connection.execute(found) if digest is not None})
    return live


@event.listens_for(Session, "after_flush_postexec")
def _let_repeats_go(_: Session, flush: UOWTransaction) -> None:
    """SQLAlchemy now holds the repeats to be rows. They are not: they become transient, as if never added."""
    for job, live in flush.attributes.pop(_REPEATS, ()):
        make_transient(job)
        vars(job)[REPEAT] = live


@event.listens_for(Session, "do_orm_execute")
def _refuse_insert(execution: ORMExecuteState) -> None:
    """``session.execute(insert(SettleBatch))`` checks no arguments and gives no key."""
    mapper = execution.bind_mapper
    if execution.is_insert and mapper is not None and issubclass(mapper.class_, Job):
        what = f"insert({mapper.class_.__name__}) would go round the arguments' checks and the key."
        raise EnqueueError("MAGIK_USE_BULK_ENQUEUE", what)


def _key(job: Job) -> Key:
    assert job.key_digest is not None
    return job.job_class, job.key_digest
