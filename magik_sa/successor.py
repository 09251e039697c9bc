"""A job that adds the next of its own class and key: the next chunk, the next page.

Its own row is still live then, so the new one would be dropped as a repeat of it. Such a successor is held back
from the flush and added in the same transaction right after the row has ended.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from .job import Job

_HELD = "_magik_successors"


def expect(job: Job, session: Session) -> None:
    """From here on, successors of `job` that are added to `session` are held back."""
    session.info[_HELD] = (job, [])


def follow(sessions: scoped_session[Session] | sessionmaker[Session]) -> None:
    """Have the Sessions of this factory hold successors back. Once a factory."""
    event.listen(sessions, "before_flush", _hold)


def release(session: Session) -> None:
    """The row has ended in this transaction: now its successors can be added."""
    if _HELD in session.info:
        _, waiting = session.info.pop(_HELD)
        session.add_all(waiting)


def are_held(session: Session) -> bool:
    """Whether some wait for the row to end."""
    return bool(session.info.get(_HELD, (None, ()))[1])


def held(session: Session, new: Job) -> bool:
    """Hold `new` back if it is a successor of the job that runs in this Session; whether it is."""
    job, waiting = session.info.get(_HELD, (None, []))
    if job is None or job.key_digest is None or (new.job_class, new.key_digest) != (job.job_class, job.key_digest):
        return False
    waiting.append(new)
    return True


def _hold(session: Session, _: Any, __: Any) -> None:
    for new in [new for new in session.new if isinstance(new, Job)]:
        if held(session, new):
            session.expunge(new)
