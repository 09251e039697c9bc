"""One job, in one Session, in one thread: authorise, perform, then finish, retry or expire.

The end of a job is the last statement of the job's own transaction, and names the version the job was read with.
A run that has lost its lock, was moved or was cancelled finds no such row, and everything it did goes back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any

from sqlalchemy import Connection, Update, delete, func, inspect, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, class_mapper, make_transient_to_detached, scoped_session
from sqlalchemy.orm.attributes import set_committed_value

from .attribute import read_all
from .claim import INTERRUPTED, Claimed
from .context import context
from .errors import RunError
from .failure import cut, describe, headline
from .fence import Fence, guard
from .job import Job, declared
from .logs import say
from .policy import authorise
from .rows import Unreadable
from .storable import invalid

JOBS = Job.__table__
COLUMNS = tuple(column.key for column in JOBS.columns)
AT_ONCE = {"40001", "40P01"}  # serialization failure, deadlock: nobody's fault, tried again without a pause
TRIES_OF_OURS = 5  # of our own short transactions, against the same two


class Outcome(Enum):
    """How a run ended."""

    FINISHED = "finished"
    RETRY = "retry"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    UNRECORDED = "unrecorded"  # the database was out of reach: the row is as it was, and runs again


class Superseded(Exception):
    """The row is no longer the one this run was given: another worker has it, or it was moved or cancelled."""


@dataclass
class Run:
    """One run of one job: what was claimed, where it runs, and the version that fences its writes."""

    claimed: Claimed
    connection: Connection
    sessions: scoped_session[Session]
    stopping: Callable[[], bool]
    fence: Fence = field(init=False)
    job: Job = field(init=False)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.fence = Fence(self.claimed.row["version"])


def run(run: Run) -> Outcome:
    """Run one job to its outcome. Never raises: whatever a job raises is that job's failure."""
    try:
        with _carried(run), _session(run) as session:
            run.job = attach(run.claimed.row, session)
            run.job.__dict__["_magik_stopping"] = run.stopping
            guard(run.job, session, run.fence)
            outcome = _interruption(run) or _attempt(run, session)
    except BaseException as error:
        say(logging.ERROR, "outcome_unrecorded", error=headline(error), **_fields(run))
        outcome = Outcome.UNRECORDED
    level = logging.INFO if outcome in (Outcome.FINISHED, Outcome.SUPERSEDED) else logging.WARNING
    say(level, f"job_{outcome.value}", duration_ms=round((time.monotonic() - run.started) * 1000, 1), **_fields(run))
    return outcome


def _attempt(run: Run, session: Session) -> Outcome:
    try:
        _check_args(run)
        if not _allowed(run, session):
            return denied(run)
        run.job.perform(session)
        return finish(run, session)
    except Superseded:
        _roll_back(session)
        return Outcome.SUPERSEDED
    except BaseException as error:
        return fail(run, session, error)


def _check_args(run: Run) -> None:
    """Refuse a row that does not fit its class before the application's code has run, not in the middle of it."""
    args = run.claimed.row["args"]
    if isinstance(args, Unreadable):
        raise invalid("args", f"cannot be read ({args.why})")
    read_all(run.job)


def attach(row: dict[str, Any], session: Session) -> Job:
    """The claimed row as a persistent object of `session`, without asking the database again."""
    cls = declared()[row["job_class"]]
    job: Job = class_mapper(cls).class_manager.new_instance()  # of a mapper that is configured, unlike inspect(cls)
    for name in COLUMNS:
        set_committed_value(job, name, row[name])
    make_transient_to_detached(job)
    session.add(job)
    return job


@contextmanager
def _carried(run: Run) -> Iterator[None]:
    """What travelled with the job is the context for as long as it runs, and of what it adds."""
    carried = run.claimed.row["context"]
    token = context.set(carried if isinstance(carried, dict) else {})
    try:
        yield
    finally:
        context.reset(token)


@contextmanager
def _session(run: Run) -> Iterator[Session]:
    """This thread's Session, on the one Connection that the thread owns; closed whatever happens."""
    session = run.sessions(bind=run.connection)
    try:
        yield session
    finally:
        run.sessions.remove()


def _allowed(run: Run, session: Session) -> bool:
    """The one place where a job's policy is asked, in a transaction that is over before `perform` begins."""
    allowed = authorise(run.job, session)
    if session.in_transaction():
        session.commit()
    return allowed


def finish(run: Run, session: Session) -> Outcome:
    """The last statement of the job's own transaction: the row goes (or says finished, with keep), or all goes back."""
    session.flush()
    state = inspect(run.job)
    if state.deleted or state.was_deleted:  # the job has cancelled itself
        session.commit()
        return Outcome.FINISHED
    mine = (JOBS.c.id == run.claimed.id, JOBS.c.version == run.fence.pending)
    if type(run.job).__magik__.keep is None:
        ended = session.connection(bind_arguments={"mapper": Job}).execute(delete(JOBS).where(*mine))
    else:
        kept = update(JOBS).where(*mine).values(finished_at=func.now(), version=JOBS.c.version + 1)
        ended = session.connection(bind_arguments={"mapper": Job}).execute(kept)
    if ended.rowcount != 1:
        raise Superseded
    session.commit()
    return Outcome.FINISHED


def fail(run: Run, session: Session, error: BaseException) -> Outcome:
    """Roll back, then write the failure in a fresh transaction: another try, or the end as a dead letter."""
    _roll_back(session)
    cls = type(run.job)
    errors = run.claimed.row["error_count"] + 1
    if cls.__magik__.retries.exhausted(errors) or isinstance(error, cls.__magik__.discard_on):
        return expire(run, error)
    delay = timedelta(0) if _code(error) in AT_ONCE else cls.__magik__.retries.delay(errors)
    values = {**_failure(error), "run_at": func.now() + delay}
    return Outcome.RETRY if _record(run, values) else Outcome.SUPERSEDED


def expire(run: Run, error: BaseException) -> Outcome:
    """The tries are used up, or nobody wants another: the row stays as a dead letter, and on_failure runs once."""
    if not _record(run, {**_failure(error), "expired_at": func.now()}):
        return Outcome.SUPERSEDED
    try:
        with _fresh_session(run) as session:
            run.job.on_failure(session, error)
            session.commit()
    except BaseException as second:
        also = cut(f"{describe(error)}\n\non_failure then raised {describe(second)}", 24_000)
        _record(run, {"last_error": also})
    return Outcome.EXPIRED


def denied(run: Run) -> Outcome:
    """The policy said no: a dead letter at once."""
    verb = type(run.job).__magik__.policy
    return expire(run, RunError("MAGIK_POLICY_DENIED", f"The policy {verb!r} denied this job."))


def _interruption(run: Run) -> Outcome | None:
    """Count the run whose worker died before this one; None where this run may go on at once (the first time)."""
    if not run.claimed.interrupted:
        return None
    row, retries = run.claimed.row, type(run.job).__magik__.retries
    error = RunError("MAGIK_JOB_INTERRUPTED", "The worker that ran this job died, or lost its locking connection.")
    if retries.exhausted(row["error_count"] + 1):
        return expire(run, error)
    if (row["last_error"] or "").startswith(INTERRUPTED):
        values = {**_failure(error), "run_at": func.now() + retries.delay(row["error_count"] + 1)}
        return Outcome.RETRY if _record(run, values) else Outcome.SUPERSEDED
    return None if _count(run, error) else Outcome.SUPERSEDED


def _count(run: Run, error: RunError) -> bool:
    """Record an interruption and let this run be the next try: the job has to read of itself what the row says.

    It failed no later than this run's claim. Said later, this run's own note would look older than the failure,
    and if this run died too that would not be counted.
    """
    row = run.claimed.row
    known = {"error_count": row["error_count"] + 1, "last_error": describe(error), "failed_at": row["claimed_at"]}
    if not _record(run, known):
        return False
    row.update(known, version=run.fence.committed)
    for name in (*known, "version"):
        set_committed_value(run.job, name, row[name])
    return True


def _failure(error: BaseException) -> dict[str, Any]:
    return {"error_count": JOBS.c.error_count + 1, "last_error": describe(error), "failed_at": func.now()}


def _record(run: Run, values: dict[str, Any]) -> bool:
    """Write to the job's row in a transaction of our own; False where the row is no longer this run's.

    Ours are READ COMMITTED whatever the default is, and are tried again where the server broke them off.
    """
    mine = (JOBS.c.id == run.claimed.id, JOBS.c.version == run.fence.committed, JOBS.c.finished_at.is_(None))
    statement = update(JOBS).where(*mine).values(version=JOBS.c.version + 1, **values)
    for _ in range(TRIES_OF_OURS - 1):
        try:
            return _write(run, statement)
        except DBAPIError as error:
            if not (error.connection_invalidated or _code(error) in AT_ONCE):
                raise
    return _write(run, statement)


def _write(run: Run, statement: Update) -> bool:
    with run.connection.begin():
        run.connection.execute(text("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"))
        written = run.connection.execute(statement).rowcount == 1
    if written:
        run.fence.moved()
    return written


@contextmanager
def _fresh_session(run: Run) -> Iterator[Session]:
    """A Session of its own for on_failure, after the job's has ended; open work goes back where on_failure raises.

    The job is as its own last commit and the record of this failure left it, and no transaction is open.
    """
    run.sessions.remove()
    session = run.sessions(bind=run.connection)
    try:
        run.job = attach({**run.claimed.row, "version": run.fence.committed}, session)
        session.refresh(run.job, ["error_count", "last_error", "failed_at", "expired_at", *_readable_args(run)])
        session.commit()
        yield session
    finally:
        run.sessions.remove()


def _readable_args(run: Run) -> list[str]:
    return [] if isinstance(run.claimed.row["args"], Unreadable) else ["args"]


def _roll_back(session: Session) -> None:
    try:
        session.rollback()
    except Exception as error:  # the connection is gone, and its transaction with it
        say(logging.WARNING, "rollback_failed", error=headline(error))


def _code(error: BaseException) -> str | None:
    return getattr(getattr(error, "orig", error), "sqlstate", None) or getattr(
        getattr(error, "orig", error), "pgcode", None
    )


def _fields(run: Run) -> dict[str, Any]:
    row = run.claimed.row
    return {
        "job_id": row["id"],
        "job_class": row["job_class"],
        "queue": row["queue"],
        "attempt": row["error_count"] + 1,
    }
