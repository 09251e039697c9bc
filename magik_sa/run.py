"""One job, in one thread: authorise, perform, then finish, snooze, retry or expire. As a rule in one Session."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from . import around, successor
from .attribute import read_all, settle
from .carried import context
from .claim import Claimed
from .ending import denied, discard, fail, finish, interruption, roll_back, snooze
from .errors import MagikError
from .failure import headline, kind, raised_at
from .job import class_of
from .job_session import Run, is_whole, loaded, opened
from .logs import is_said, say
from .outcome import Discard, Outcome, Snooze, Superseded
from .routing import Registry, is_used
from .verb import SYSTEM, authorise

End = Callable[[Run, Session], Outcome]

QUIET = {Outcome.FINISHED, Outcome.SNOOZED, Outcome.SUPERSEDED}  # nothing that anybody has to look at


def run(run: Run) -> Outcome:
    """Run one job to its outcome. Never raises: whatever a job raises is that job's failure."""
    started = time.monotonic()
    try:
        outcome = _in_its_context(run)
    except BaseException as error:
        say(logging.ERROR, "outcome_unrecorded", error=headline(error), **_fields(run.claimed))
        run.error, outcome = error, Outcome.UNRECORDED
    run.took = round((time.monotonic() - started) * 1000, 1)
    if outcome is not Outcome.PERFORMED:
        tell(run.claimed, outcome, run.took, run.error)
    return outcome


def tell(claimed: Claimed, outcome: Outcome, took: float, error: BaseException | None = None) -> None:
    """The line of the log about the end of a run that took so many milliseconds."""
    level = logging.INFO if outcome in QUIET else logging.WARNING
    if not is_said(level):
        return
    say(
        level,
        f"job_{outcome.value}",
        duration_ms=took,
        **_fields(claimed),
        outcome=outcome.value,
        error=_reason(error),
        where=None if error is None else raised_at(error),
    )


def _in_its_context(run: Run) -> Outcome:
    """As it was where the job was added."""
    told = run.claimed.row["context"]
    run.job, token = loaded(run), context.set(told if isinstance(told, dict) else {})
    try:
        return _without_session(run) if _takes_none(run) else _with_session(run)
    finally:
        context.reset(token)


# ---- in its Session


def _with_session(run: Run) -> Outcome:
    with opened(run) as session:
        return interruption(run) or _ended(run, session, partial(_work, run, session))


def _ended(run: Run, session: Session, work: Callable[[], End]) -> Outcome:
    successor.expect(run.job, session)
    try:
        end = run.within_limit(work, run.connection)
        return end(run, session)
    except Superseded:
        roll_back(session)
        return Outcome.SUPERSEDED
    except BaseException as error:
        return fail(run, session, error)


def _work(run: Run, session: Session) -> End:
    """All that is the application's, and how the run is to end. The flush of what perform left belongs to its time."""
    read_all(run.job)  # a row that does not fit its class is refused before the application's code has run
    if not _allowed(run, session):
        return denied
    return _flushed(session, _performed(partial(around.perform, run.job, session)))


def _performed(perform: Callable[[], None]) -> End:
    try:
        perform()
    except Snooze as asked:
        return partial(snooze, asked=asked)
    except Discard as asked:
        return partial(discard, asked=asked)
    return finish


def _allowed(run: Run, session: Session) -> bool:
    """The one place where a job's policy is asked, in a transaction that is over before `perform` begins."""
    if type(run.job).__magik__.policy == SYSTEM:
        return True
    allowed = authorise(run.job, session)
    session.flush()  # of what it has added the Session does not know yet where it goes
    if is_used(session) and session.in_transaction():
        session.commit()
    return allowed


# ---- without one


def _takes_none(run: Run) -> bool:
    """Whether nothing that there is to do takes one. Making it is half of what running such a job costs.

    An application's own registry has the job's Session while it is performed, for whatever code asks there.
    """
    cls = class_of(run.claimed.row["job_class"])
    alone = cls.__magik__.alone and cls.__magik__.policy == SYSTEM and run.together and is_whole(cls)
    return alone and isinstance(run.sessions, Registry) and not (around.is_any() or run.claimed.interrupted)


def _without_session(run: Run) -> Outcome:
    """Perform it so. There is a Session in the end where something has to be written: all but the plain end."""
    try:
        end = run.within_limit(partial(_work_alone, run), None)
    except BaseException as error:
        return _failed_alone(run, error)
    if end is finish and not instance_state(run.job).committed_state:
        return Outcome.PERFORMED
    return _ended_alone(run, end)


def _work_alone(run: Run) -> End:
    read_all(run.job)
    end = _performed(partial(around.perform_alone, run.job))
    if instance_state(run.job).modified:  # it may have shown a list, and then nothing has told of a change in it
        settle(run.job)
    return end


def _ended_alone(run: Run, end: End) -> Outcome:
    with ExitStack() as stack:
        try:
            session = stack.enter_context(opened(run))
        except InvalidRequestError as error:  # it has put itself into another Session
            return _failed_alone(run, error)
        return _ended(run, session, partial(_flushed, session, end))


def _failed_alone(run: Run, error: BaseException) -> Outcome:
    run.job = loaded(run)  # anew: whatever it did to itself goes back, too
    with opened(run) as session:
        return fail(run, session, error)


def _flushed(session: Session, end: End) -> End:
    session.flush()
    return end


def _reason(error: BaseException | None) -> str | None:
    """What kind of error it was, or its code. Its text may hold anything, and stands in the row's last_error only."""
    if error is None:
        return None
    own = issubclass(type(error), MagikError)  # isinstance() may ask the error itself, which may raise
    return str(vars(error)["code"]) if own else kind(error)


def _fields(claimed: Claimed) -> dict[str, Any]:
    row = claimed.row
    return {
        "job_id": row["id"],
        "job_class": row["job_class"],
        "queue": row["queue"],
        "attempt": row["error_count"] + 1,
    }
