"""The worker needs a session of its own, proves at boot that it has one, and refuses where a pooler has none."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.orm import Session as OrmSession

from magik_sa import Job
from tests.jobs.lasting import Lasting, LastingUntilGo
from tests.tools.effects import Effects
from tests.tools.pooler import NEEDED, Pooler, PoolMode
from tests.tools.proxy import Proxy
from tests.tools.sessions import ONE_KEY, advisory_locks, terminate
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess, dsn_of

LASTING = "tests.jobs.lasting"
REFUSED = 2
pytestmark = NEEDED


def add(url: str, *jobs: Job) -> None:
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
    """It is woken, runs jobs, heals a lost locking connection while they run, and drains."""
    worker.wait_ready()
    add(url, *(LastingUntilGo() for _ in range(4)))
    until(lambda: effects.count() == 2, what="two jobs run")
    assert terminate(dsn, f"{worker.app_name} locker")
    worker.wait_log("event=locking_connection_back kept=2 superseded=0", 20)
    app.execute("CREATE TABLE go ()")
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


def test_a_pooler_with_fewer_sessions_than_the_worker_needs_is_told_of(database: str) -> None:
    with (
        Pooler(database, "session", 2, query_wait_timeout=1) as between,
        WorkerProcess(between.url, LASTING, concurrency=3) as worker,
    ):
        assert worker.wait(30) == REFUSED
        assert "MAGIK_CONNECTION_BUDGET" in worker.stderr()


SESSION = "SELECT backend_pid FROM magik_workers"
ROWS = "SELECT error_count, split_part(last_error, ':', 2) FROM magik_jobs WHERE error_count > 0"
TOLD = " MAGIK_JOB_INTERRUPTED"
BEGUN = "SELECT count(*), sum(error_count) FROM magik_claims JOIN magik_jobs ON id = job_id WHERE begun"


def begun(app: psycopg.Connection[Any], jobs: int) -> Callable[[], bool]:
    """So many have, one of them for the first time."""
    return lambda: app.execute(BEGUN).fetchone() == (jobs, jobs - 1)


def test_a_worker_that_is_given_the_session_of_a_dead_one_works_and_counts_its_interruptions(
    database: str, dsn: str, app: psycopg.Connection[Any], effects: Effects
) -> None:
    """The pooler has two sessions, so the third worker is given one that a dead one had."""
    with Pooler(database, "session", 2) as between:
        for lives in (1, 2):
            add(database, Lasting(seconds=60))
            with WorkerProcess(database, LASTING, concurrency=2, locking_url=between.url) as worker:
                worker.wait_ready()
                until(begun(app, lives), what="all are known to have begun, and interruptions are counted")
                worker.kill()
            until(lambda: advisory_locks(dsn)[ONE_KEY] == 0, what="the pooler has reset the session")
        with WorkerProcess(database, LASTING, concurrency=4, locking_url=between.url) as successor:
            successor.wait_ready()
            until(lambda: set(app.execute(ROWS).fetchall()) == {(1, TOLD), (2, TOLD)}, what="they are counted")
            add(database, Lasting())
            until(lambda: effects.finished() == 1, what="a job runs")
        assert len(app.execute(SESSION).fetchall()) <= 2


def test_a_session_that_the_pooler_has_given_to_somebody_else_is_not_ended(
    database: str, dsn: str, app: psycopg.Connection[Any], effects: Effects
) -> None:
    """A client that waits for a session gets the worker's in the moment its connection breaks; the worker goes on."""
    with Pooler(database, "session", 2) as between, Proxy("127.0.0.1", between.port) as proxy:
        url = make_url(between.url).set(port=proxy.port).render_as_string(hide_password=False)
        with WorkerProcess(database, LASTING, concurrency=1, locking_url=url) as worker, ExitStack() as stack:
            worker.wait_ready()
            add(database, LastingUntilGo())
            until(begun(app, 1), what="a job runs, and the locking connection says nothing more of it")
            ((ours,),) = app.execute(SESSION).fetchall()
            held = stack.enter_context(closing(connect(between.url)))  # the other of the two
            with ThreadPoolExecutor(1) as thread:
                coming = thread.submit(connect, between.url)
                until(lambda: not coming.done() and waiting(between) == 1, what="it waits in line")
                proxy.cut()
                shop = stack.enter_context(closing(coming.result(10)))
            assert pid(shop) == ours
            shop.execute("SELECT pg_advisory_lock(4711)")
            held.close()
            worker.wait_log("event=locking_connection_back kept=1 superseded=0")
            assert pid(shop) == ours
            app.execute("CREATE TABLE go ()")
            until(lambda: app.execute("SELECT count(*) FROM magik_jobs").fetchone() == (0,), what="the job is done")
            assert worker.terminate() == 0
    assert effects.count() == 1


def connect(url: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(dsn_of(url), autocommit=True, application_name="shop", prepare_threshold=None)
    pid(connection)  # a session is given with the first statement
    return connection


def pid(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return int(row[0]) if row else 0


def waiting(between: Pooler) -> int:
    """How many clients of the pooler wait for a session."""
    console = make_url(between.url).set(database="pgbouncer").render_as_string(hide_password=False)
    with closing(psycopg.connect(dsn_of(console), autocommit=True, cursor_factory=psycopg.ClientCursor)) as admin:
        cursor = admin.execute("SHOW CLIENTS")
        state = [column.name for column in cursor.description or []].index("state")
        return [row[state] for row in cursor.fetchall()].count("waiting")


def test_with_a_direct_way_for_the_locks_the_rest_may_go_through_a_transaction_pooler(
    database: str, dsn: str, app: psycopg.Connection[Any], effects: Effects
) -> None:
    with (
        Pooler(database, "transaction") as between,
        WorkerProcess(between.url, LASTING, concurrency=2, poll_interval="1h", locking_url=database) as worker,
    ):
        expect_to_work(worker, between.url, app, dsn, effects)
