"""Where the Session of a job sends its statements: where the application's would.

With one difference: what would go to the engine of the jobs goes through the one Connection that the job's thread owns.
Whatever names the engine in the application (`bind`, `binds`, a `get_bind` of its own) goes on naming it.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from .writing import WRITING

_OWN: Final = "magik_connection"


def engine_of(session: Session) -> Engine | Connection:
    """What this Session writes jobs to; some applications send what only reads elsewhere."""
    return session.get_bind(**WRITING)


def routed(sessions: scoped_session[Session]) -> scoped_session[Session]:
    """The same kind of Sessions, in the same registry, to be opened on a Connection. `sessions` stays as it is."""
    application: Any = sessions.session_factory
    factory = sessionmaker(class_=_routed_class(application.class_))
    factory.kw = application.kw
    own = scoped_session(factory)
    own.registry = sessions.registry
    return own


def opened(sessions: scoped_session[Session], connection: Connection) -> Session:
    """A Session of this thread on `connection`."""
    return sessions(info={_OWN: connection})


def move(session: Session, connection: Connection) -> None:
    """Have it go on with another Connection; it is in no transaction."""
    session.info[_OWN] = connection


def _routed_class(application: type[Session]) -> type[Session]:
    def get_bind(session: Session, *args: Any, **kw: Any) -> Engine | Connection:
        bind = application.get_bind(session, *args, **kw)
        own: Connection = session.info[_OWN]
        return own if bind is own.engine else bind

    return type(application.__name__, (application,), {"get_bind": get_bind})
