"""Where jobs are written, whatever the application calls its session.

Some applications send what only reads elsewhere, and go by the class of a statement to tell. Of all statements a DELETE
is taken for a write by everybody; an INSERT, which otherwise comes from a flush only, is not.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, delete
from sqlalchemy.orm import Session, scoped_session

from .errors import EnqueueError
from .job import Job

WRITING: Final[dict[str, Any]] = {"mapper": Job.__mapper__, "clause": delete(Job.__table__)}


def connection_of(session: Session) -> Connection:
    """The connection that this Session writes jobs on, in the transaction that is open there."""
    return session.connection(bind_arguments=WRITING)


def written_by(given: Connection | Session | scoped_session[Session]) -> Connection:
    """The connection itself, or that of a Session: what is not mapped is where the jobs are."""
    return given if isinstance(given, Connection) else connection_of(session_of(given))


def session_of(given: object) -> Session:
    """The Session itself, also of a `scoped_session`. Raises ``MAGIK_SYNC_SESSION_REQUIRED`` for anything else."""
    session = given() if isinstance(given, scoped_session) else given
    if not isinstance(session, Session):
        what = f"session: a {type(given).__name__} is no Session."
        raise EnqueueError("MAGIK_SYNC_SESSION_REQUIRED", what, field="session")
    return session
