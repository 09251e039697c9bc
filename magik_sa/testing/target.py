"""What a test hands to the kit: its Session, or what makes Sessions.

A Session stands for the transaction it is in: what is read, run and written stays in there. What makes Sessions stands
for what is committed. Where it is bound to a Connection that is in a transaction already, as in tests that roll
everything back at their end, that transaction is the whole world, and a commit is the release of a savepoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from ..errors import KitError
from ..routing import engine_of

Factory = scoped_session[Any] | sessionmaker[Any] | Engine | Connection
Target = Session | Factory

ASYNCHRONOUS: Final = "Go through run_sync, as in `await session.run_sync(drain)`."


def refuse_what_is_none(where: object) -> None:
    """Raise `KitError` ``MAGIK_TEST_TARGET_INVALID`` for what is no Target at all; type checkers see it before."""
    if not isinstance(where, Session | scoped_session | sessionmaker | Engine | Connection):
        kind = type(where)
        remedy = ASYNCHRONOUS if kind.__module__.startswith("sqlalchemy.ext.asyncio") else None
        raise _invalid(f"It was given {kind.__module__}.{kind.__qualname__}.", remedy)


def maker_of(where: Any) -> sessionmaker[Any]:
    """What makes a Session that is nobody else's."""
    maker = where.session_factory if isinstance(where, scoped_session) else where
    if isinstance(maker, Engine | Connection):
        return sessionmaker(maker)
    if not isinstance(maker, sessionmaker):
        raise _invalid("It makes its Sessions by something other than a sessionmaker.")
    return maker


def bind_of(session: Session) -> Engine | Connection:
    """What this Session writes jobs to. Raises `KitError` ``MAGIK_TEST_TARGET_INVALID`` where jobs cannot be."""
    bind = engine_of(session)
    if bind.dialect.name != "postgresql":
        raise _invalid(f"It is bound to {bind.dialect.name}, and jobs live in PostgreSQL.")
    return bind


def connection_of(session: Session) -> Connection:
    """The connection on which this Session writes jobs."""
    return session.connection(bind_arguments={"bind": bind_of(session)})


def refuse_autocommit(connection: Connection) -> None:
    """Raise `KitError` ``MAGIK_TEST_TARGET_INVALID``: a worker refuses it too, as nothing of a job would go back."""
    driver: Any = connection.connection.dbapi_connection
    if driver.autocommit:
        raise _invalid("It is in AUTOCOMMIT, where what a failed job has written would stay.")


@contextmanager
def reading(where: Target) -> Iterator[Session]:
    """A Session to look with: the test's own, which flushes nothing for it, or one that is closed again."""
    refuse_what_is_none(where)
    if isinstance(where, Session):
        bind_of(where)
        with where.no_autoflush:
            yield where
        return
    with maker_of(where)() as session:
        bind_of(session)
        yield session


@contextmanager
def writing(where: Target) -> Iterator[Connection]:
    """A connection for statements of the kit's own: in the test's Session, or committed at the end."""
    refuse_what_is_none(where)
    if isinstance(where, Session):
        where.flush()
        yield connection_of(where)
        return
    with maker_of(where)() as session:
        yield connection_of(session)
        session.commit()


def _invalid(fault: str, remedy: str | None = None) -> KitError:
    return KitError("MAGIK_TEST_TARGET_INVALID", fault, remedy=remedy)
