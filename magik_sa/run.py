"""One job, in one Session, in one thread: authorise, perform, then finish, snooze, retry or expire."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from . import around
from .attribute import read_all
from .ending import denied, discard, fail, finish, interruption, roll_back, snooze
from .errors import MagikError
from .failure import headline
from .job_session import Run, job_session
from .logs import say
from .outcome import Discard, Outcome, Snooze, Superseded
from .rows import Unreadable
from .storable import invalid
from .verb import authorise

QUIET = {Outcome.FINISHED, Outcome.SNOOZED, Outcome.SUPERSEDED}  # nothing that anybody has to look at


def run(run: Run) -> Outcome:
    """Run one job to its outcome. Never raises: whatever a job raises is that job's failure."""
    started = time.monotonic()
    try:
        with job_session(run) as session:
            outcome = interruption(run) or _attempt(run, session)
    except BaseException as error:
        say(logging.ERROR, "outcome_unrecorded", error=headline(error), **_fields(run))
        run.error, outcome = error, Outcome.UNRECORDED
    level = logging.INFO if outcome in QUIET else logging.WARNING
    took = round((time.monotonic() - started) * 1000, 1)
    say(level, f"job_{outcome.value}", duration_ms=took, **_fields(run), error=_reason(run.error))
    return outcome


def _attempt(run: Run, session: Session) -> Outcome:
    try:
        end = run.within_limit(partial(_work, run, session))
        return end()
    except Superseded:
        roll_back(session)
        return Outcome.SUPERSEDED
    except BaseException as error:
        return fail(run, session, error)


def _work(run: Run, session: Session) -> Callable[[], Outcome]:
    """All that is the application's, and how the run is to end. The flush of what perform left belongs to its time."""
    _check_args(run)
    if not _allowed(run, session):
        return partial(denied, run)
    end = _perform(run, session)
    session.flush()
    return end


def _check_args(run: Run) -> None:
    """Refuse a row that does not fit its class before the application's code has run, not in the middle of it."""
    args = run.claimed.row["args"]
    if isinstance(args, Unreadable):
        raise invalid("args", f"cannot be read ({args.why})")
    read_all(run.job)


def _perform(run: Run, session: Session) -> Callable[[], Outcome]:
    try:
        around.perform(run.job, session)
    except Snooze as asked:
        return partial(snooze, run, session, asked)
    except Discard as asked:
        return partial(discard, run, session, asked)
    return partial(finish, run, session)


def _allowed(run: Run, session: Session) -> bool:
    """The one place where a job's policy is asked, in a transaction that is over before `perform` begins."""
    allowed = authorise(run.job, session)
    if session.in_transaction():
        session.commit()
    return allowed


def _reason(error: BaseException | None) -> str | None:
    """What kind of error it was, or its code. Its text may hold anything, and stands in the row's last_error only."""
    return error.code if isinstance(error, MagikError) else type(error).__name__ if error else None


def _fields(run: Run) -> dict[str, Any]:
    row = run.claimed.row
    return {
        "job_id": row["id"],
        "job_class": row["job_class"],
        "queue": row["queue"],
        "attempt": row["error_count"] + 1,
    }
