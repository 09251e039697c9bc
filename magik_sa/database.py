"""The database: it can be reached and written to, has our tables, keeps sessions, and has room for this worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
from sqlalchemy import URL, Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from . import grants, server
from .errors import BootError, MagikError
from .failure import first_line, sqlstate
from .harmless import harmless
from .home import located
from .installed import HEAD, installed_version
from .job import declared
from .locked import BOUND, is_locked, tables_locked
from .readable import readable
from .sessions import room
from .settings import Settings, schema
from .timetable import timetable
from .unreached import unreached
from .url import parse

POOLER_ROUNDS = 10
MARK = "SELECT set_config('magik_sa.session', 'marked', false)"
MARKED = "SELECT current_setting('magik_sa.session', true) IS NOT DISTINCT FROM 'marked'"
UNDEFINED_TABLE = "42P01"
FREE = "SELECT FROM {schema}magik_jobs LIMIT 0"  # reads nothing, and waits as a claim would where the table is locked
TRANSACTIONAL = 'Give the worker a Session on an engine without isolation_level="AUTOCOMMIT".'
RESETTING = (
    "Have the pooler reset sessions (PgBouncer: server_reset_query = DISCARD ALL), or connect directly (--locking-url)."
)
PATIENCE = 2.0  # seconds for an answer that one session gives at once, whatever another does


def check_server(locking: str, engine: Engine, settings: Settings, threads: int) -> Iterator[MagikError]:
    """The server can be reached, written to, holds a schema we know, keeps sessions, and has room."""
    url = parse(settings.locking_url) if settings.locking_url else engine.url
    yield from _reaching(url, check_locking(locking, engine, settings, threads))


def _reaching(url: URL, checks: Iterator[MagikError]) -> Iterator[MagikError]:
    """What `checks` find there, or that they could not be made."""
    try:
        yield from checks
    except BootError as error:
        yield error
    except Exception as error:
        yield unreached(url, error)


def check_locking(locking: str, engine: Engine, settings: Settings, threads: int) -> Iterator[MagikError]:
    """Sessions last here, first of all: a pooler may not even let the other questions through.

    With the locking connection open all others are made as well: what the worker will need is there.
    """
    refuse_pooler(locking)
    with server.connect_locking(locking, settings.app_name) as connection:
        yield from check_names(connection, [*settings.queues, *declared(), *timetable(declared())])
        short = [*check_budget(connection, threads + settings.maintenance + 1, settings.processes)]
        yield from short
        if not short:
            yield from _reaching(engine.url, check_engine(engine, threads, connection))


def check_engine(engine: Engine, threads: int, locking: psycopg.Connection[Any]) -> Iterator[MagikError]:
    """The application's way leads to our tables, and all threads can go it at once; a pool keeps the connections."""
    with ExitStack() as stack:
        application, *_ = [stack.enter_context(engine.connect()) for _ in range(min(threads, room(engine)))]
        yield from check_transactions(application)
        yield from check_tables(application, locking)


def check_transactions(application: Connection) -> Iterator[MagikError]:
    """A job's work and its end are one transaction; in AUTOCOMMIT each statement would be one of its own."""
    driver: Any = application.connection.dbapi_connection
    if driver.autocommit:  # SQLAlchemy's get_isolation_level() asks the server, which does not know
        fault = "The Session's engine is in AUTOCOMMIT: what a failed job has written would stay."
        yield BootError("MAGIK_SESSION_INVALID", fault, field="session", remedy=TRANSACTIONAL)


def check_tables(application: Connection, locking: psycopg.Connection[Any]) -> Iterator[MagikError]:
    """They are there, in a version that we know, may be used by these roles, and nobody keeps them locked: that would
    be an endless wait.
    """
    try:
        application.execution_options(isolation_level="READ COMMITTED").execute(text(BOUND))
        yield from [*check_grants(application, locking)] or check_schema(application)
    except DBAPIError as error:
        application.rollback()
        if is_locked(error):
            yield tables_locked(application)
        elif sqlstate(error) == UNDEFINED_TABLE:
            yield BootError("MAGIK_SCHEMA_INCOMPLETE", f"A part of the tables is missing: {first_line(error)}.")
        else:
            raise


def check_grants(application: Connection, locking: psycopg.Connection[Any]) -> Iterator[MagikError]:
    """Both roles may do what a worker does with the tables; often they are one."""
    lacks = grants.lacking(application, grants.PERFORMING)
    told = {(lack.role, lack.table or lack.sql) for lack in lacks}
    lacks += (
        lack for lack in grants.lacking(locking, grants.LOCKING) if (lack.role, lack.table or lack.sql) not in told
    )
    for role in dict.fromkeys(lack.role for lack in lacks):
        yield grants.refused([lack for lack in lacks if lack.role == role])


def check_schema(connection: Connection) -> Iterator[MagikError]:
    """The tables are there, in a version that this release works with."""
    version = installed_version(connection)
    where, database = f"schema {schema()}" if schema() else "the search_path", connection.engine.url.database
    if version == 0:
        yield BootError("MAGIK_SCHEMA_MISSING", f"No tables of magik_sa in {where} of the database {database}.")
    elif version < HEAD:
        yield BootError("MAGIK_SCHEMA_BEHIND", f"The tables are of version {version}, this release needs {HEAD}.")
    elif version > HEAD:
        yield BootError("MAGIK_SCHEMA_AHEAD", f"The tables are of version {version}, this release knows {HEAD}.")
    else:
        connection.execute(text(located(FREE)))


def check_budget(connection: psycopg.Connection[Any], each: int, processes: int) -> Iterator[MagikError]:
    """The server can hold so many connections of each process at all."""
    row = connection.execute(
        "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
        " - coalesce(nullif(current_setting('reserved_connections', true), ''), '0')::int"
    ).fetchone()
    if row and row[0] < each * processes:
        who = "The worker needs" if processes == 1 else f"The {processes} processes of the worker need"
        fault = f"{who} {each * processes} connections, the server's max_connections leaves {row[0]}."
        yield BootError("MAGIK_CONNECTION_BUDGET", fault, field="concurrency")


def check_names(connection: psycopg.Connection[Any], names: Iterable[str]) -> Iterator[MagikError]:
    """The database can hold the names that every claim will ask for: one that it cannot would keep all from working."""
    for name in names:
        if name.isascii():
            continue
        try:
            connection.execute("SELECT %s::text", [name])
        except psycopg.errors.UntranslatableCharacter:
            encoding = connection.info.parameter_status("server_encoding")
            fault = f"The database's encoding {encoding} lacks characters of {harmless(name)!r}."
            yield BootError("MAGIK_DATABASE_ENCODING", fault, field="name")


def refuse_pooler(locking: str) -> None:
    """A session is a session: behind a transaction pooler locks would guard nothing, and nobody would notice.

    One connection asks who serves it, before, while and after another holds a transaction open. Then a third asks for
    what these two have set: a pooler in session mode that resets nothing would hand on a dead worker's locks, too. No
    lock is used as a probe: it would stay on the pooler's connection.
    """
    with closing(_plain(locking)) as a, closing(_plain(locking)) as b:
        if not all(_same_backend(a, b) for _ in range(POOLER_ROUNDS)):
            fault = (
                "Sessions do not last here: the server seems to stand behind a pooler in transaction or statement mode."
            )
            raise BootError("MAGIK_ADVISORY_LOCK_UNAVAILABLE", fault, field="locking-url")
        for connection in (a, b):
            connection.execute(MARK)
    with closing(_plain(locking)) as c:
        if c.execute(MARKED).fetchall() == [(True,)]:
            fault = "Sessions are handed on as they are: a pooler in session mode seems to reset nothing."
            raise BootError("MAGIK_ADVISORY_LOCK_UNAVAILABLE", fault, field="locking-url", remedy=RESETTING)


def _plain(locking: str) -> psycopg.Connection[Any]:
    return psycopg.connect(locking, autocommit=True, prepare_threshold=None, connect_timeout=server.CONNECT_TIMEOUT)


def _same_backend(a: psycopg.Connection[Any], b: psycopg.Connection[Any]) -> bool:
    """Statement mode refuses the transaction; a pooler whose only connection has it leaves the other waiting."""
    first = _pid(a)
    try:
        with b.transaction():
            other, second = _pid(b), _pid(a)
    except psycopg.errors.ProtocolViolation:
        return False
    return first is not None and first == second != other


def _pid(connection: psycopg.Connection[Any]) -> int | None:
    """Who serves this connection; None if no answer comes. Asked below psycopg, which would wait for ever."""
    connection.pgconn.send_query(b"SELECT pg_backend_pid()")
    if not readable([connection], PATIENCE):
        return None
    results = [*iter(connection.pgconn.get_result, None)]
    if (pid := results[0].get_value(0, 0)) is None:
        raise psycopg.OperationalError(results[0].get_error_message())
    return int(pid)
