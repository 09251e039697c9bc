"""The ends of a run: finished, snoozed, tried again, or a dead letter. Each writes the row once.

A good end is the last statement of the job's own transaction and names the version that this run was given. A run
that has lost its lock, was moved or was cancelled finds no such row, and everything it did goes back. A failure is
written in a fresh transaction, after everything has gone back.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import ColumnElement, Delete, Update, bindparam, delete, inspect, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from .claim import INTERRUPTED
from .errors import RunError
from .failure import cut, describe, headline, sqlstate
from .job_session import Run, fresh_session
from .logs import say
from .one_exchange import OneExchange, is_kept, is_superseded
from .outcome import Discard, Outcome, Snooze, Superseded
from .recording import (
    AT_ONCE,
    JOBS,
    MOMENT,
    MOST_ERRORS,
    NEXT_VERSION,
    expect_changed,
    failed,
    kept,
    record,
    text_of,
    writable,
)
from .routing import move
from .successor import release
from .unused import is_unused
from .writing import connection_of

# Made once: to put together the same statement for each job costs as much as to send it.
MINE = (JOBS.c.id == bindparam("its_id"), JOBS.c.version == bindparam("its_version"))
GONE, OURS = delete(JOBS).where(*MINE), update(JOBS).where(*MINE)
KEPT = OURS.values(finished_at=MOMENT, version=NEXT_VERSION)


# ---- with the job's own transaction, in which all that perform left is flushed


def finish(run: Run, session: Session) -> Outcome:
    """The row goes (or says finished, with keep), together with all that the job wrote; or nothing does.

    Of one that wrote nothing it may go later, where this run says so.
    """
    if run.together and is_unused(run.job, session):
        return Outcome.PERFORMED
    state = inspect(run.job)
    if state.deleted or state.was_deleted:  # the job has cancelled itself
        run.fence.ending = True
        session.commit()
    else:
        _expect_open(run, session)
        keep = type(run.job).__magik__.keep is not None
        if run.in_one is not None and run.in_one.fits(run.connection, session):
            _end_in_one(run, session, run.in_one, keep=keep)
        else:
            _end(run, session, KEPT if keep else GONE)
    return Outcome.FINISHED


def snooze(run: Run, session: Session, asked: Snooze) -> Outcome:
    """The job's work is committed, and its row is due again later. No try is used up."""
    _expect_open(run, session)
    _end(run, session, OURS.values(run_at=_later(run, asked.delay), version=NEXT_VERSION))
    return Outcome.SNOOZED


def discard(run: Run, session: Session, asked: Discard) -> Outcome:
    """The job's work is committed, and its row is a dead letter by its own wish."""
    _expect_open(run, session)
    told = writable(text_of(run, asked), connection_of(session))
    values = {"last_error": told, "failed_at": MOMENT, "expired_at": MOMENT}
    _end(run, session, OURS.values(**values, version=NEXT_VERSION))
    run.error = asked
    run.fence.moved()
    _tell(run, asked)
    return Outcome.EXPIRED


def _end(run: Run, session: Session, statement: Delete | Update) -> None:
    run.fence.ending = True
    mine = {"its_id": run.claimed.id, "its_version": run.fence.pending}
    connection = connection_of(session)
    if connection.execute(statement, mine).rowcount != 1:
        expect_changed(connection, *MINE, **mine)
        raise Superseded
    release(session)
    _commit(session)


def _end_in_one(run: Run, session: Session, way: OneExchange, *, keep: bool) -> None:
    """The same where the row's end is the first half of the COMMIT."""
    run.fence.ending = True
    try:
        with way.commits(run.connection, run.claimed.id, lambda: run.fence.pending, keep=keep):
            _commit(session)
    except DBAPIError as error:
        if is_superseded(error):
            raise Superseded from None
        if is_kept(error):
            raise kept() from None
        raise


def _commit(session: Session) -> None:
    """The last one of the run, and of its Session."""
    session.expire_on_commit = False
    session.commit()


def _expect_open(run: Run, session: Session) -> None:
    """A job that has closed its Session, or the Connection below it, has thrown away what it had not committed."""
    if inspect(run.job).session is not session or (run.connection.closed and session.in_transaction()):
        raise RunError("MAGIK_SESSION_CLOSED", "The job's Session was closed, and what it had not committed is lost.")
    if run.connection.closed:
        run.connection = run.take()
        move(session, run.connection)


# ---- after it has gone back


def fail(run: Run, session: Session, error: BaseException) -> Outcome:
    """Roll back, then write the failure: another try, or the end as a dead letter."""
    roll_back(session)
    cls = type(run.job)
    errors = run.claimed.row["error_count"] + 1
    if cls.__magik__.retries.exhausted(errors) or issubclass(type(error), cls.__magik__.discard_on):
        return expire(run, error)
    at_once = errors == 1 and sqlstate(error) in AT_ONCE
    delay = timedelta(0) if at_once else cls.__magik__.retries.delay(errors)
    return _retry(run, error, delay)


def denied(run: Run, _: Session) -> Outcome:
    """The policy said no: a dead letter at once."""
    verb = type(run.job).__magik__.policy
    return expire(run, RunError("MAGIK_POLICY_DENIED", f"The policy {verb!r} denied this job."))


def interruption(run: Run) -> Outcome | None:
    """Count the run whose worker died before this one; None where this run may go on at once (the first time)."""
    if not run.claimed.interrupted:
        return None
    row, retries = run.claimed.row, type(run.job).__magik__.retries
    error = RunError("MAGIK_JOB_INTERRUPTED", "The worker that ran this job died, or lost its locking connection.")
    if retries.exhausted(row["error_count"] + 1):
        return expire(run, error)
    if (row["last_error"] or "").startswith(INTERRUPTED):
        return _retry(run, error, retries.delay(row["error_count"] + 1))
    told = {"job_class": row["job_class"], "queue": row["queue"], "attempt": row["error_count"] + 1}
    say(logging.WARNING, "job_interrupted", job_id=row["id"], **told)
    return None if _count(run, error) else Outcome.SUPERSEDED


def expire(run: Run, error: BaseException) -> Outcome:
    """No further try: the row stays as a dead letter, and on_failure runs once."""
    run.error = error
    if not record(run, {**failed(run, error), "expired_at": MOMENT}):
        return Outcome.SUPERSEDED
    _tell(run, error)
    return Outcome.EXPIRED


def _retry(run: Run, error: BaseException, delay: timedelta) -> Outcome:
    run.error = error
    written = record(run, {**failed(run, error), "run_at": _later(run, delay)})
    return Outcome.RETRY if written else Outcome.SUPERSEDED


def _later(run: Run, delay: timedelta) -> ColumnElement[datetime]:
    """When it runs again."""
    run.wait = delay
    return MOMENT + delay


def _tell(run: Run, error: BaseException) -> None:
    """on_failure, in a Session of its own; an error of its own is recorded beside the job's."""
    try:
        with fresh_session(run) as session:
            run.within_limit(partial(_on_failure, run, session, error), run.connection)
            session.commit()
    except BaseException as second:
        also = cut(f"{text_of(run, error)}\n\non_failure then raised {text_of(run, second)}", 24_000)
        record(run, {"last_error": also})


def _on_failure(run: Run, session: Session, error: BaseException) -> None:
    run.job.on_failure(session, error)
    session.flush()


def _count(run: Run, error: RunError) -> bool:
    """Record an interruption and let this run be the next try: the job has to read of itself what the row says.

    It failed no later than this run's claim. Said later, this run's own note would look older than the failure,
    and if this run died too that would not be counted.
    """
    row = run.claimed.row
    errors = min(row["error_count"], MOST_ERRORS - 1) + 1
    known = {"error_count": errors, "last_error": describe(error), "failed_at": row["claimed_at"]}
    if not record(run, known):
        return False
    row.update(known, version=run.fence.committed)
    for name in (*known, "version"):
        set_committed_value(run.job, name, row[name])
    return True


def roll_back(session: Session) -> None:
    """Take everything back; where the connection is gone its transaction is gone with it."""
    try:
        session.rollback()
    except Exception as error:
        say(logging.WARNING, "rollback_failed", error=headline(error))
