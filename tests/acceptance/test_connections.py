"""The connections of a worker: lost ones are replaced, and there are never more than it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import sessionmaker

from tests.jobs.cutting import AfterCut, Between
from tests.jobs.lasting import Lasting
from tests.tools.cluster import Cluster
from tests.tools.counting import LOOKING, counting
from tests.tools.effects import Effects
from tests.tools.schema import migrate
from tests.tools.sessions import pids, terminate
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

MODULE = "tests.jobs.cutting"
SESSIONS: dict[str, dict[str, Any]] = {
    "its own, psycopg": {},
    "its own, psycopg2": {"driver": "psycopg2"},
    "the application's": {"session": f"{MODULE}:Sessions"},
}


def ask(dsn: str, query: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True, application_name="looking") as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.mark.parametrize("kind", SESSIONS)
def test_connections_lost_between_two_statements_fail_four_jobs_once_and_no_other(
    database: str, dsn: str, engine: Engine, effects: Effects, Session: sessionmaker[OrmSession], kind: str
) -> None:
    ask(dsn, "CREATE TABLE notes (what text)")
    options = dict(SESSIONS[kind])
    driver = options.pop("driver", "psycopg")
    with Session.begin() as session:
        session.add_all([Between() for _ in range(4)])
    url = database.replace("+psycopg:", f"+{driver}:")
    with WorkerProcess(database, MODULE, database_url=url, concurrency=4, **options) as worker:
        name = "app performer" if options else f"{worker.app_name} performer"
        worker.wait_ready()
        until(lambda: effects.count() == 4 and len(pids(dsn, name, query="INSERT INTO notes%")) == 4)
        cut = terminate(dsn, name)
        until(lambda: not set(cut) & set(pids(dsn, name)), what="they are gone")
        ask(dsn, "CREATE TABLE gate ()")
        until(lambda: ask(dsn, "SELECT sum(error_count) FROM magik_jobs") == [(4,)], what="four failures")
        with Session.begin() as session:
            session.add_all([AfterCut() for _ in range(20)])
        until(lambda: ask(dsn, "SELECT count(*) FROM magik_jobs") == [(4,)], what="all markers are done")
        failed = ask(dsn, "SELECT error_count, last_error, expired_at FROM magik_jobs")
        assert worker.terminate() == 0
    assert {(row[0], row[2]) for row in failed} == {(1, None)}
    assert all("OperationalError" in row[1] and "terminat" in row[1] for row in failed), failed
    assert ask(dsn, "SELECT what, count(*) FROM notes GROUP BY 1") == [("marker", 20)]
    assert effects.count() == 4


@pytest.fixture(scope="module")
def small() -> Iterator[Cluster]:
    """A server with room for 20 sessions."""
    with Cluster(None, {"max_connections": 20}) as cluster:
        migrate(cluster.url())
        ask(cluster.dsn(), "CREATE TABLE notes (what text)")
        yield cluster


def test_a_worker_never_has_more_connections_than_it_says(small: Cluster) -> None:
    dsn, gone = small.dsn(), set[int]()
    engine = create_engine(small.url(), connect_args={"application_name": LOOKING})
    with counting(dsn, "shop") as most, WorkerProcess(small.url(), MODULE, concurrency=5, app_name="shop") as worker:
        worker.wait_ready()
        assert "connections=6" in worker.stderr()
        until(lambda: most["shop"] == 6, what="one a thread, and one for the locks")
        for part in ("locker", "performer", "%", "locker"):
            with OrmSession(engine) as session, session.begin():
                session.add_all([AfterCut() for _ in range(50)])
            until(lambda: ask(dsn, "SELECT count(*) FROM magik_jobs") == [(0,)], what="all are done")
            gone.update(pids(dsn, f"{worker.app_name} {part}"))
            terminate(dsn, f"{worker.app_name} {part}")
            until(lambda: set(pids(dsn, f"{worker.app_name} locker")) - gone, what="a locker again")
        assert worker.terminate() == 0
    engine.dispose()
    assert most["shop"] == 6


def test_a_server_that_is_full_is_called_so(small: Cluster) -> None:
    taken = [psycopg.connect(small.dsn()) for _ in range(15)]
    try:
        with WorkerProcess(small.url(), MODULE, concurrency=5) as worker:
            assert worker.wait() == 2
        assert "MAGIK_CONNECTION_BUDGET" in worker.stderr()
        assert "max_connections" in worker.stderr()
        assert "Traceback" not in worker.stderr()
    finally:
        for connection in taken:
            connection.close()


def test_a_pool_that_others_use_is_called_so(database: str) -> None:
    program = """if True:
        import os
        from sqlalchemy import create_engine
        from sqlalchemy.orm import sessionmaker
        from magik_sa import BootRefused, Worker
        from tests.jobs import cutting
        engine = create_engine(os.environ["MAGIK_DATABASE_URL"], pool_size=2, max_overflow=0, pool_timeout=0.1)
        with engine.connect():
            try:
                Worker(session=sessionmaker(engine), concurrency=2).boot()
            except BootRefused as refused:
                print(refused)
                raise SystemExit(2)
        """
    with WorkerProcess(database, program=("-c", program)) as process:
        assert process.wait() == 2
        text_ = process.stdout()
    assert "MAGIK_POOL_SIZE_MISMATCH: The engine's pool is in use" in text_


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_server_that_ends_idle_sessions_ends_none_of_a_workers(
    database: str, dsn: str, engine: Engine, effects: Effects, Session: sessionmaker[OrmSession], driver: str
) -> None:
    """A job may compute for long before it writes, and its connection is idle all the while.

    A session says only with its first statement that it is not to be ended, so it has some time for that.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET idle_session_timeout = '2500ms'").format(name))
    with Session.begin() as session:
        session.add(Lasting(seconds=4))
    url = database.replace("+psycopg:", f"+{driver}:")
    with WorkerProcess(database, "tests.jobs.lasting", database_url=url, concurrency=1) as worker:
        until(lambda: effects.count() and ask(dsn, "SELECT count(*), sum(error_count) FROM magik_jobs") != [(1, 0)], 20)
        assert ask(dsn, "SELECT count(*) FROM magik_jobs") == [(0,)]
        assert worker.terminate() == 0
    assert "_lost" not in worker.stderr()
