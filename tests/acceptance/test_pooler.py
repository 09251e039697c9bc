"""C72: the worker needs a session of its own, proves at boot that it has one, and refuses where a pooler has none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session as OrmSession

from tests.jobs.lasting import Lasting
from tests.tools import pooler
from tests.tools.effects import Effects
from tests.tools.pooler import Pooler, PoolMode
from tests.tools.sessions import ONE_KEY, advisory_locks, terminate
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

LASTING = "tests.jobs.lasting"
REFUSED = 2
pytestmark = [
    pytest.mark.pgbouncer,
    pytest.mark.skipif(pooler.program() is None, reason="pgbouncer is not installed"),
]


@pytest.fixture
def app(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def add(url: str, *jobs: Lasting) -> None:
    """Add jobs by way of `url`; psycopg's prepared statements would not survive a transaction pooler."""
    engine = create_engine(url, connect_args={"prepare_threshold": None})
    with OrmSession(engine) as session, session.begin():
        session.add_all(jobs)
    engine.dispose()


def expect_refusal(worker: WorkerProcess) -> None:
    began = time.monotonic()
    assert worker.wait(10) == REFUSED
    assert time.monotonic() - began < 5
    (line,) = worker.stderr().splitlines()
    assert line.startswith("MAGIK_ADVISORY_LOCK_UNAVAILABLE: ")
    assert "pooler in transaction or statement mode" in line
    assert "directly, or through a pooler in session mode" in line


@pytest.mark.parametrize("size", [1, 20])
@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_worker_behind_a_pooler_that_keeps_no_session_is_refused(
    database: str, dsn: str, app: psycopg.Connection[Any], effects: Effects, mode: PoolMode, size: int
) -> None:
    """Enqueueing goes through all the same, and nothing is left on the pooler's connections."""
    with Pooler(database, mode, size) as between:
        if mode == "transaction":
            add(between.url, Lasting())
        with WorkerProcess(between.url, LASTING, concurrency=1) as worker:
            expect_refusal(worker)
        assert advisory_locks(dsn)[ONE_KEY] == 0
    assert effects.count() == 0


def test_a_locking_connection_behind_such_a_pooler_is_refused(database: str) -> None:
    with (
        Pooler(database, "transaction") as between,
        WorkerProcess(database, LASTING, concurrency=1, locking_url=between.url) as worker,
    ):
        expect_refusal(worker)


def expect_to_work(worker: WorkerProcess, url: str, app: psycopg.Connection[Any], dsn: str, effects: Effects) -> None:
    """It is woken, runs jobs, heals a lost locking connection, and drains."""
    worker.wait_ready()
    add(url, *(Lasting(seconds=0.3) for _ in range(4)))
    until(lambda: effects.count() == 2, what="two jobs run")
    assert terminate(dsn, f"{worker.app_name} locker")
    until(lambda: app.execute("SELECT count(*) FROM magik_jobs").fetchone() == (0,), what="all jobs are done")
    until(lambda: advisory_locks(dsn)[ONE_KEY] == 0, 5, what="no job is locked")
    assert (effects.count(), effects.finished()) == (4, 4)
    assert worker.terminate() == 0


def test_a_worker_behind_a_pooler_in_session_mode_works(
    database: str, dsn: str, app: psycopg.Connection[Any], effects: Effects
) -> None:
    with (
        Pooler(database, "session") as between,
        WorkerProcess(between.url, LASTING, concurrency=2, poll_interval="1h") as worker,
    ):
        expect_to_work(worker, between.url, app, dsn, effects)


def test_with_a_direct_way_for_the_locks_the_rest_may_go_through_a_transaction_pooler(
    database: str, dsn: str, app: psycopg.Connection[Any], effects: Effects
) -> None:
    with (
        Pooler(database, "transaction") as between,
        WorkerProcess(between.url, LASTING, concurrency=2, poll_interval="1h", locking_url=database) as worker,
    ):
        expect_to_work(worker, between.url, app, dsn, effects)
