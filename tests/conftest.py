"""The test server and a fresh, migrated database for each test; tests/README.md describes them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pytest_postgresql.executors import NoopExecutor
from pytest_postgresql.factories import postgresql_noproc
from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import sessionmaker

from tests import controls
from tests.tools import asking
from tests.tools import server as servers
from tests.tools.effects import Effects
from tests.tools.keeper import keeper
from tests.tools.schema import migrate
from tests.tools.server import RUN, Server
from tests.tools.workers import dsn_of

missing = controls.missing()
TAKEN_OUT = controls.take_out(missing) if missing else ""  # before any test module is imported


def pytest_configure() -> None:
    """Whoever runs in the background ignores these, and so would every program that a test starts."""
    for number, heard in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, heard)


def pytest_unconfigure() -> None:
    """Let the processes that start programs, and clean up after a killed run, end with this one."""
    asking.close()
    keeper.close()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server of the run: PostgreSQL 18 from the wheel, unless MAGIK_TEST_DATABASE_URL names another."""
    with servers.running() as server:
        yield server


unmigrated = postgresql_noproc(depends_on="server", dbname=RUN)


@pytest.fixture(scope="session")
def template(server: Server, unmigrated: NoopExecutor) -> str:
    """Name of the migrated database that the tests' own are cloned from."""
    server.give(unmigrated.template_dbname)
    migrate(server.url(unmigrated.template_dbname))
    if TAKEN_OUT:
        server.execute(TAKEN_OUT, unmigrated.template_dbname)
    return unmigrated.template_dbname


@pytest.fixture
def database(server: Server, template: str) -> Iterator[str]:
    """A migrated database of this test's own, as a SQLAlchemy URL: postgresql+psycopg://…, no superuser."""
    with server.created(template) as name:
        yield server.url(name)


@pytest.fixture
def empty_database(server: Server) -> Iterator[str]:
    """A database of this test's own with nothing in it, as a SQLAlchemy URL."""
    with server.created() as name:
        yield server.url(name)


@pytest.fixture
def dsn(database: str) -> str:
    """The same database in the form that libpq reads."""
    return dsn_of(database)


@pytest.fixture
def superuser_dsn(server: Server, database: str) -> str:
    """The same database as a superuser, for what an administrator does to it."""
    if not server.superuser:
        pytest.skip("the user of MAGIK_TEST_DATABASE_URL is not a superuser")
    return server.dsn(make_url(database).database)


@pytest.fixture
def app(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of somebody's beside the workers, in autocommit."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    """An engine on the test's database."""
    engine = create_engine(database)
    yield engine
    engine.dispose()


@pytest.fixture
def Session(engine: Engine) -> sessionmaker[OrmSession]:
    """A Session factory, named as applications name theirs."""
    return sessionmaker(engine)


@pytest.fixture
def effects(database: str) -> Effects:
    """The record of what job bodies did in the test's database."""
    return Effects(database)
