"""Where the Session of a job sends its statements: where the application's would.

With one difference: what would go to the engine of the jobs goes through the one Connection that the job's thread owns.
Whatever names the engine in the application (`bind`, `binds`, a `get_bind` of its own) goes on naming it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from .errors import RunError
from .writing import WRITING

_OWN: Final = "magik_connection"
_USED: Final = "magik_used"
_USING: Final = "magik_using"
_ELSEWHERE: Final = "magik_elsewhere"


class Registry(scoped_session[Session]):
    """One that no code of the application's knows, so nobody can ask it for the Session of the job that runs."""


def engine_of(session: Session) -> Engine | Connection:
    """What this Session writes jobs to; some applications send what only reads elsewhere."""
    return session.get_bind(**WRITING)


def routed(sessions: scoped_session[Session]) -> scoped_session[Session]:
    """The same kind of Sessions, in the same registry, to be opened on a Connection. `sessions` stays as it is."""
    application: Any = sessions.session_factory
    factory = sessionmaker(class_=_routed_class(application.class_))
    factory.kw = application.kw
    own = Registry(factory) if isinstance(sessions, Registry) else scoped_session(factory)
    own.registry = sessions.registry
    event.listen(own, "after_begin", _begun)
    return own


def opened(
    sessions: scoped_session[Session], connection: Connection, using: Callable[[], None] | None = None
) -> Session:
    """A Session of this thread on `connection`; `using` is called when it is first used."""
    return sessions(info={_OWN: connection, _USING: using})


def is_used(session: Session) -> bool:
    """Whether it has had reason to ask where a statement goes, or was told, on whatever engine."""
    return _USED in session.info


def is_elsewhere(session: Session) -> bool:
    """Whether it has begun a transaction on another connection than its own, too."""
    return _ELSEWHERE in session.info


def move(session: Session, connection: Connection) -> None:
    """Have it go on with another Connection; it is in no transaction."""
    session.info[_OWN] = connection


def let_go(session: Session) -> None:
    """Its job has ended, and the Connection is the next one's: a thread that the job has left behind gets an error."""
    session.info.pop(_OWN, None)


def _use(session: Session) -> None:
    if _USED not in session.info:
        session.info[_USED] = True
        if (using := session.info.get(_USING)) is not None:
            using()


def _begun(session: Session, _: Any, connection: Connection) -> None:
    """On a connection that was named in the call, as bind_arguments can, nobody has asked."""
    _use(session)
    if connection is not session.info.get(_OWN):
        session.info[_ELSEWHERE] = True


def _routed_class(application: type[Session]) -> type[Session]:
    def get_bind(session: Session, *args: Any, **kw: Any) -> Engine | Connection:
        _use(session)
        bind = application.get_bind(session, *args, **kw)
        own: Connection | None = session.info.get(_OWN)
        if own is None:
            raise RunError("MAGIK_SESSION_CLOSED", "The job has ended, and this was its Session.")
        return own if bind is own.engine else bind

    return type(application.__name__, (application,), {"get_bind": get_bind})
