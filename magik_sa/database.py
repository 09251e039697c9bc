"""The database: it can be reached and written to, has our tables, keeps sessions, and has room for this worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine

from . import migrations, server
from .errors import BootError, MagikError
from .failure import first_line
from .settings import Settings, schema

POOLER_ROUNDS = 10


def check_server(locking: str, engine: Engine, settings: Settings) -> Iterator[MagikError]:
    """The server can be reached, written to, holds a schema we know, keeps sessions, and has room."""
    try:
        with engine.connect() as application:
            yield from check_schema(application)
        with server.connect_locking(locking, settings.app_name) as connection:
            yield from check_budget(connection, settings.concurrency)
        yield from check_pooler(locking)
    except BootError as error:
        yield error
    except Exception as error:
        fault = f"{engine.url.render_as_string()} cannot be reached: {first_line(error)}."
        yield BootError("MAGIK_DATABASE_UNREACHABLE", fault, field="database-url")


def check_schema(connection: Connection) -> Iterator[MagikError]:
    """The tables are there, in a version that this release works with."""
    installed = migrations.installed_version(connection)
    where = f"schema {schema()}" if schema() else "the search_path"
    if installed == 0:
        yield BootError("MAGIK_SCHEMA_MISSING", f"No tables of magik_sa in {where}.")
    elif installed < migrations.HEAD:
        yield BootError(
            "MAGIK_SCHEMA_BEHIND", f"The tables are of version {installed}, this release needs {migrations.HEAD}."
        )
    elif installed > migrations.HEAD:
        yield BootError(
            "MAGIK_SCHEMA_AHEAD", f"The tables are of version {installed}, this release knows {migrations.HEAD}."
        )


def check_budget(connection: psycopg.Connection[Any], concurrency: int) -> Iterator[MagikError]:
    """The server can hold the worker's connections at all: one a thread, and the locking connection."""
    row = connection.execute(
        "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
    ).fetchone()
    if row and row[0] < concurrency + 1:
        fault = f"The worker needs {concurrency + 1} connections, the server's max_connections leaves {row[0]}."
        yield BootError("MAGIK_CONNECTION_BUDGET", fault, field="concurrency")


def check_pooler(locking: str) -> Iterator[MagikError]:
    """A session is a session: behind a transaction pooler locks would guard nothing, and nobody would notice.

    One connection asks who serves it, before, while and after another holds a transaction open. No lock is used
    as a probe: it would stay on the pooler's connection.
    """
    fault = "Sessions do not last here: the server seems to stand behind a pooler in transaction or statement mode."
    try:
        with _plain(locking) as a, _plain(locking) as b:
            honest = all(_same_backend(a, b) for _ in range(POOLER_ROUNDS))
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        fault, honest = f"{fault} ({first_line(error)})", False
    if not honest:
        yield BootError("MAGIK_ADVISORY_LOCK_UNAVAILABLE", fault, field="locking-url")


def _plain(locking: str) -> psycopg.Connection[Any]:
    return psycopg.connect(locking, autocommit=True, prepare_threshold=None, connect_timeout=server.CONNECT_TIMEOUT)


def _same_backend(a: psycopg.Connection[Any], b: psycopg.Connection[Any]) -> bool:
    first = _pid(a)
    with b.transaction():
        other, second = _pid(b), _pid(a)
    return first == second != other


def _pid(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])
