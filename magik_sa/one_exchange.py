"""The last statement of a run and its COMMIT, sent to the server as one.

Each exchange with the server makes a thread give the interpreter away and wait to have it back; these two were half of
what a short job that writes costs. The server does not look at the COMMIT where the statement before it has failed. So
that statement calls a function of ours, ``magik_jobs_ended``, which raises where it wrote nothing.

SQLAlchemy commits by its driver's `commit`; for this once that is the exchange. Where an application has its own say in
how it is committed, or something is open on the connection, each goes by itself, as ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import generators
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from . import routing, successor
from .failure import sqlstate
from .names import table
from .settings import schema
from .unused import is_committed_as_ever
from .version import CHANGED_HANDS, KEPT

# Whether this role may call it; it may be missing, too, where nobody has migrated since there is one. It names its
# table with its schema: in one that was renamed since, or copied, it would write to another table than ours.
OFFERED: Final = """
SELECT has_function_privilege(f.oid, 'EXECUTE') AND f.pronamespace = jobs.relnamespace
       AND position('DELETE FROM ' || jobs.relnamespace::regnamespace || '.magik_jobs ' IN f.prosrc) > 0
  FROM pg_proc f, pg_class jobs
 WHERE f.oid = to_regprocedure(%(name)s) AND jobs.oid = to_regclass(%(jobs)s)"""
SIGNATURE: Final = "{name}(uuid, integer, boolean)"
COMMIT: Final = psycopg.Connection.commit
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
        return is_committed_as_ever(session) and _is_as_lent(connection.connection.driver_connection)

    @contextmanager
    def commits(self, connection: Connection, id: UUID, version: Callable[[], int], *, keep: bool) -> Iterator[None]:
        """Within, a commit on `connection` ends the row first: `version` says then which one it has."""
        driver: Any = connection.connection.driver_connection

        def commit() -> None:
            del driver.commit  # what is committed after it is no end of this row
            _exchange(driver, self._command(id, version(), keep).encode(driver.info.encoding))

        driver.commit = commit
        try:
            yield
        except DBAPIError as error:
            if sqlstate(error) in WITHDRAWN:
                self.is_offered = False
            raise
        finally:
            vars(driver).pop("commit", None)

    def _command(self, id: UUID, version: int, keep: bool) -> str:
        """Both as text: the protocol takes no values where there is more than one statement."""
        return f"SELECT {self._name}('{id}', {version:d}, {keep}); COMMIT"


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
    told = {"name": SIGNATURE.format(name=name), "jobs": table("magik_jobs", schema())}
    try:
        with engine.connect() as connection:
            return bool(connection.exec_driver_sql(OFFERED, told).scalar())
    except SQLAlchemyError:
        return False


def _is_as_lent(driver: Any) -> bool:
    """It commits as psycopg does, and is in a transaction and in nothing else.

    psycopg refuses to commit, or to roll back, where one of its own contexts is open. It tells nobody before.
    """
    own = getattr(type(driver), "commit", None) is not COMMIT or "commit" in vars(driver)
    if own or getattr(driver, "_num_transactions", False):
        return False
    line = driver.pgconn
    return bool(line.transaction_status == TransactionStatus.INTRANS and line.pipeline_status == PipelineStatus.OFF)


def _exchange(driver: psycopg.Connection[Any], command: bytes) -> None:
    """What psycopg does around a statement is for results, and for values; how it waits is its own.

    libpq's own call would wait for the server without anybody in Python: a connection that is closed meanwhile by
    another thread is one that it goes on reading from.
    """
    with driver.lock:
        driver.pgconn.send_query(command)
        result = driver.wait(generators.execute(driver.pgconn))[-1]
    if result.status != ExecStatus.COMMAND_OK:
        error = psycopg.errors.error_from_result(result, driver.info.encoding)
        with contextlib.suppress(psycopg.Error):
            driver.rollback()  # after a commit that has failed SQLAlchemy takes the transaction for ended
        raise error
