"""Which mode of a pooler is for whom: the table of docs/worker.md, cell by cell."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, delete, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session as OrmSession

from magik_sa import bulk_enqueue, once
from tests.jobs.lasting import Lasting
from tests.tools.effects import Effects
from tests.tools.pooler import NEEDED, Pooler, PoolMode
from tests.tools.program import answer, magik
from tests.tools.sessions import ONE_KEY, advisory_locks
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess, dsn_of

LASTING = "tests.jobs.lasting"
REFUSED = 2
UNPREPARED = {"prepare_threshold": None}  # as docs/worker.md says
pytestmark = NEEDED


def jobs(app: psycopg.Connection[Any]) -> int:
    return int((app.execute("SELECT count(*) FROM magik_jobs").fetchone() or [0])[0])


# ---- producers


def produce(engine: Engine, name: str) -> None:
    """Every statement more often than psycopg asks before it prepares one."""
    for number in range(8):
        with OrmSession(engine) as session, session.begin():
            session.add(kept := Lasting(delay="1h"))
            session.flush()
            assert bulk_enqueue(session, [Lasting(delay="1h") for _ in range(3)]) == 3
            with session.begin_nested() as savepoint:
                session.add(Lasting(delay="1h"))
                session.flush()
                savepoint.rollback()
            assert once(session, number, scope=name)
            session.execute(delete(Lasting).where(Lasting.id != kept.id))
            assert session.scalars(select(Lasting)).one() is kept


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_producers_may_go_through_transaction_and_session_pooling(
    database: str, app: psycopg.Connection[Any], mode: PoolMode
) -> None:
    """Two of them in turn on one session of the pooler."""
    with Pooler(database, mode, 1) as between:
        for name in ("one", "another"):
            engine = create_engine(between.url, connect_args=UNPREPARED)
            produce(engine, name)
            engine.dispose()
    assert jobs(app) == 1


def test_without_that_setting_a_producers_prepared_statements_meet_anothers(database: str) -> None:
    """The control of the test above: what psycopg prepares is the session's, which is another's as well."""
    with Pooler(database, "transaction", 1) as between:
        engines = [create_engine(between.url) for _ in range(2)]
        produce(engines[0], "one")
        with pytest.raises(DBAPIError, match="prepared statement"):
            produce(engines[1], "another")
        for engine in engines:
            engine.dispose()


def test_statement_pooling_lets_no_producer_through(database: str, app: psycopg.Connection[Any]) -> None:
    """It refuses the transaction itself, and nothing is written."""
    with Pooler(database, "statement") as between:
        engine = create_engine(between.url, connect_args=UNPREPARED)
        with pytest.raises(DBAPIError, match="not allowed in statement pooling"):
            produce(engine, "one")
        engine.dispose()
    assert jobs(app) == 0


# ---- the engine of a worker, with a direct way for its locks


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_workers_engine_may_go_through_transaction_and_session_pooling(
    database: str, app: psycopg.Connection[Any], effects: Effects, mode: PoolMode
) -> None:
    """Many jobs on few sessions, so that every statement is met on every session."""
    size = 2 if mode == "transaction" else 8
    with (
        Pooler(database, mode, size) as between,
        WorkerProcess(
            between.url, LASTING, concurrency=4, locking_url=database, env={"EFFECTS_URL": database}
        ) as worker,
    ):
        worker.wait_ready()
        app.execute("INSERT INTO magik_jobs (job_class) SELECT 'Lasting' FROM generate_series(1, 60)")
        until(lambda: jobs(app) == 0 or app.execute("SELECT FROM magik_jobs WHERE error_count > 0").fetchall(), 20)
        assert worker.terminate() == 0
    assert "prepared statement" not in worker.stderr()
    assert (jobs(app), effects.count(), effects.repeats()) == (0, 60, [])


def test_a_workers_engine_behind_statement_pooling_is_refused(database: str) -> None:
    with (
        Pooler(database, "statement") as between,
        WorkerProcess(between.url, LASTING, concurrency=1, locking_url=database) as worker,
    ):
        assert worker.wait() == REFUSED
    (line,) = worker.stderr().splitlines()
    assert line.startswith("MAGIK_SESSION_INVALID: ")
    assert "statement pooling" in line


# ---- all of a worker


def test_a_session_pooler_that_resets_nothing_is_refused(
    database: str, dsn: str, app: psycopg.Connection[Any], effects: Effects
) -> None:
    """A dead worker's locks would be the next client's; boot and doctor see it, and leave nothing behind."""
    with Pooler(database, "session", server_reset_query="") as between:
        with closing(psycopg.connect(dsn_of(between.url), autocommit=True, prepare_threshold=None)) as client:
            client.execute("SELECT pg_advisory_lock(4711)")
        assert advisory_locks(dsn)[ONE_KEY] == 1, "it is as bad as that"
        with WorkerProcess(between.url, LASTING, concurrency=2) as worker:
            assert worker.wait() == REFUSED
        (line,) = worker.stderr().splitlines()
        assert line.startswith("MAGIK_ADVISORY_LOCK_UNAVAILABLE: ")
        assert "server_reset_query" in line
        found = {each["name"]: each for each in answer(between.url, "doctor", code=3)["findings"]}
        assert found["pooler"]["severity"] == "critical"
        assert "server_reset_query" in found["pooler"]["remedy"]
        assert advisory_locks(dsn)[ONE_KEY] == 1


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_those_who_look_may_go_through_transaction_and_session_pooling(database: str, mode: PoolMode) -> None:
    with Pooler(database, mode) as between:
        assert answer(between.url, "jobs", "status")["unknown"] == {}
        found = answer(between.url, "doctor", "--locking-url", database)["findings"]
        assert {each["name"]: each["severity"] for each in found}["pooler"] == "ok"


def test_those_who_look_are_refused_by_statement_pooling(database: str) -> None:
    with Pooler(database, "statement") as between:
        for command in (["jobs", "status"], ["doctor"]):
            said = magik(between.url, *command, code=REFUSED)
            assert said.startswith("MAGIK_SESSION_INVALID: ")
            assert "statement pooling" in said
