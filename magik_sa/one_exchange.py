"""The last statement of a run and its COMMIT, sent to the server as one.

Each exchange with the server makes a thread give the interpreter away and wait to have it back; these two were half of
what a short job that writes costs. The server does not look at the COMMIT where the statement before it has failed. So
that statement calls a function of ours, ``magik_jobs_ended``, which raises where it wrote nothing.

SQLAlchemy commits by its driver's `commit`, after everything that an application can have told to come before; for this
once that is the exchange. Where it cannot be so, each goes by itself, as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from . import routing, successor
from .failure import sqlstate
from .names import table
from .settings import schema
from .version import CHANGED_HANDS, KEPT

# Whether this role may call it; it may be missing, too, where nobody has migrated since there is one.
OFFERED: Final = """
SELECT coalesce(has_function_privilege(to_regprocedure(%(name)s), 'EXECUTE'), false)"""
SIGNATURE: Final = "{name}(uuid, integer, boolean)"
WITHDRAWN: Final = {"42883", "42501", "42P01"}  # since then: no such function, no right to it, not where its table is


class OneExchange:
    """Whether and how runs end so; asked once for all threads of a worker."""

    def __init__(self, engine: Engine) -> None:
        self._name = table("magik_jobs_ended", schema())
        self.is_offered = _is_offered(engine, self._name)

    def fits(self, connection: Connection, session: Session) -> bool:
        """Whether this commit is that of one transaction on one connection, which is as it was lent.

        Not with a successor, which can be added only when the row has ended.
        """
        if not self.is_offered or session.in_nested_transaction() or session.twophase:
            return False
        if not connection.in_transaction() or routing.is_elsewhere(session) or successor.are_held(session):
            return False
        driver = connection.connection.driver_connection
        return isinstance(driver, psycopg.Connection) and _is_as_lent(driver)

    @contextmanager
    def commits(self, connection: Connection, id: UUID, version: Callable[[], int], *, keep: bool) -> Iterator[None]:
        """Within, a commit on `connection` ends the row first: `version` says then which one it has."""
        driver: Any = connection.connection.driver_connection
        driver.commit = lambda: _exchange(driver, self._command(id, version(), keep))
        try:
            yield
        except DBAPIError as error:
            if sqlstate(error) in WITHDRAWN:
                self.is_offered = False
            raise
        finally:
            vars(driver).pop("commit", None)

    def _command(self, id: UUID, version: int, keep: bool) -> bytes:
        """Both as text: the protocol takes no values where there is more than one statement."""
        return f"SELECT {self._name}('{id}', {version:d}, {keep}); COMMIT".encode()


def is_superseded(error: DBAPIError) -> bool:
    """Whether the row was another run's by then."""
    return sqlstate(error) == CHANGED_HANDS


def is_kept(error: DBAPIError) -> bool:
    """Whether the row was this run's, and the server did not write it all the same."""
    return sqlstate(error) == KEPT


def _is_offered(engine: Engine, name: str) -> bool:
    """No, where the server does not answer just now: a worker begins without it, too."""
    if engine.dialect.driver != "psycopg":
        return False
    try:
        with engine.connect() as connection:
            return bool(connection.exec_driver_sql(OFFERED, {"name": SIGNATURE.format(name=name)}).scalar())
    except SQLAlchemyError:
        return False


def _is_as_lent(driver: psycopg.Connection[Any]) -> bool:
    own = type(driver).commit is not psycopg.Connection.commit
    return not own and driver.pgconn.transaction_status == TransactionStatus.INTRANS


def _exchange(driver: psycopg.Connection[Any], command: bytes) -> None:
    """By libpq itself: what psycopg does around a statement is for results, and for values."""
    with driver.lock:
        result = driver.pgconn.exec_(command)
    if driver.broken:  # then it is of no kind, and by its kind it is known that the connection is lost
        raise psycopg.OperationalError(result.get_error_message())
    if result.status != ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result, driver.info.encoding)
