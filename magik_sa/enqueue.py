"""Enqueueing: what a flush does with jobs beside their INSERT.

Before it, jobs with a key are put in one order for everybody: two transactions that insert the same keys in
opposite order wait for each other. The INSERT itself passes over repeats (`table.JobTable`), so that the unique
index decides, which waits until it knows how another open transaction ends. After it one SELECT tells which jobs
were passed over; they leave the Session. Nothing is remembered outside the database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    Connection,
    LargeBinary,
    Text,
    Uuid,
    any_,
    bindparam,
    cast,
    column,
    event,
    func,
    inspect,
    select,
)
from sqlalchemy.orm import ORMExecuteState, Session, UOWTransaction, make_transient

from . import absent as absent
from . import committed as committed
from .attribute import settle
from .errors import EnqueueError
from .job import REPEAT, Job, declared, metadata
from .setting import setting
from .unknown import UnknownJob
from .writing import connection_of

__all__ = ["Job", "UnknownJob", "declared", "metadata"]

_REPEATS: Final = "magik_repeats"
_jobs: Final = Job.__table__.c
_asked: Final = (
    func.unnest(bindparam("classes", type_=ARRAY(Text)), bindparam("digests", type_=ARRAY(Text)))
    .table_valued(column("job_class", Text), column("digest", Text), name="asked")
    .render_derived()
)
# Two arrays: no limit of parameters is met, whatever the number of keys. Drivers prepare statements, and a plan
# that was made for an almost empty table reads all of it for each key: with many keys it is made anew.
_FEW: Final = 100
_PLAN_ANEW: Final = ("plan_cache_mode", "force_custom_plan")
# Most jobs have been inserted, and are there by their ids. Only for those that are not the index of keys is gone
# through, in which an old snapshot keeps dead rows that the planner knows nothing of.
# (They are a query of their own, so that a plan that reads the whole table does not read their text anew for each row.)
_ids: Final = select(cast(func.unnest(bindparam("ids", type_=ARRAY(Text))), Uuid)).scalar_subquery()
_THERE: Final = select(_jobs.id, _jobs.job_class, _jobs.key_digest).where(
    _jobs.id == any_(func.array(_ids, type_=ARRAY(Uuid))),
    func.coalesce(_jobs.finished_at, _jobs.expired_at).is_(None),
)
_LIVE: Final = select(_jobs.id, _jobs.job_class, _jobs.key_digest).where(
    _jobs.job_class == _asked.c.job_class,
    _jobs.key_digest == cast(_asked.c.digest, LargeBinary),
    _jobs.finished_at.is_(None),
    _jobs.expired_at.is_(None),
)

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
    states = [inspect(job) for job in sorted(keyed, key=key)]
    for state, place in zip(states, sorted(state.insert_order or 0 for state in states), strict=True):
        state.insert_order = place


@event.listens_for(Session, "after_flush")
def _find_repeats(session: Session, flush: UOWTransaction) -> None:
    """Ask which of the keyed jobs are there now. A key whose live job has another id was passed over."""
    flushed = (job for job in session.new if isinstance(job, Job) and inspect(job) in flush.states)
    keyed = [job for job in flushed if job.key_digest is not None]
    if keyed:
        flush.attributes[_REPEATS] = list(repeats(session, keyed))


def repeats(session: Session, keyed: list[Job]) -> Iterator[tuple[Job, UUID | None]]:
    """Those that an INSERT has passed over, each with the id of the live job of its key; None if that has ended."""
    connection = connection_of(session)
    with setting(connection, *_PLAN_ANEW) if len(keyed) > _FEW else nullcontext():
        found = connection.execute(_THERE, {"ids": [str(job.id) for job in keyed]})
        there = {(id, name, digest) for id, name, digest in found}
        passed = [job for job in keyed if (job.id, *key(job)) not in there]
        live = _live(connection, sorted({key(job) for job in passed})) if passed else {}
    return ((job, live.get(key(job))) for job in passed)


def _live(connection: Connection, keys: list[Key]) -> dict[Key, UUID]:
    """The ids of the live jobs with these keys, seen from the transaction of the flush."""
    asked = {"classes": [name for name, _ in keys], "digests": [f"\\x{digest.hex()}" for _, digest in keys]}
    return {(name, digest): id for id, name, digest in connection.execute(_LIVE, asked)}


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


def key(job: Job) -> Key:
    """The class and the digest of a job that has a key, by which everybody sorts."""
    assert job.key_digest is not None
    return job.job_class, job.key_digest
