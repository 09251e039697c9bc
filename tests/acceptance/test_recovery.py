"""Connections break, servers go away and come back: the worker goes on by itself, and what jobs write counts once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.orm import Session as OrmSession

from tests.jobs.lasting import Lasting
from tests.jobs.ledger import Posting, open_books
from tests.jobs.waking import Woken
from tests.tools.cluster import Cluster
from tests.tools.effects import Effects
from tests.tools.proxy import Proxy
from tests.tools.schema import migrate
from tests.tools.sessions import ONE_KEY, TWO_KEYS, advisory_locks, pids, terminate
from tests.tools.waiting import never, until
from tests.tools.workers import WorkerProcess

LEDGER, LASTING, WAKING = "tests.jobs.ledger", "tests.jobs.lasting", "tests.jobs.waking"
SILENCE_NOTICED = 15.0  # seconds, as docs/worker.md says


@pytest.fixture
def app(dsn: str, engine: Engine) -> Iterator[psycopg.Connection[Any]]:
    open_books(engine)
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends with the test what is entered into it."""
    with ExitStack() as stack:
        yield stack


def add(engine: Engine, *jobs: Any) -> None:
    with OrmSession(engine) as session, session.begin():
        session.add_all(jobs)


def one(connection: psycopg.Connection[Any], statement: str) -> Any:
    row = connection.execute(statement.encode()).fetchone()
    return row and row[0]


def locker(dsn: str, worker: WorkerProcess) -> list[int]:
    return pids(dsn, f"{worker.app_name} locker")


# ---- the locking connection


def test_twenty_losses_of_the_locking_connection_while_ten_jobs_run(
    app: psycopg.Connection[Any], database: str, dsn: str, engine: Engine, effects: Effects
) -> None:
    with WorkerProcess(database, LEDGER, concurrency=10) as worker:
        worker.wait_ready()
        for n in range(1, 21):
            add(engine, *(Posting(seconds=0.4) for _ in range(10)))
            until(lambda n=n: effects.count() == 10 * n, what="ten jobs run")  # type: ignore[misc]
            (before,) = terminate(dsn, f"{worker.app_name} locker")
            until(lambda before=before: locker(dsn, worker) not in ([], [before]), what="it is back")  # type: ignore[misc]
            until(lambda before=before: before not in locker(dsn, worker), what="the old one has gone")  # type: ignore[misc]
        until(lambda: one(app, "SELECT count(*) FROM magik_jobs") == 0, what="all jobs are done")
        until(lambda: advisory_locks(dsn)[ONE_KEY] == 0, what="no job is locked")
        until(lambda: one(app, "SELECT count(*) FROM magik_claims") == 0, what="no job is noted")
    assert app.execute("SELECT count(*), count(DISTINCT job_id) FROM entries").fetchone() == (200, 200)
    assert effects.repeats() == []  # nobody else was there to take them


def test_a_connection_gone_silent_is_noticed_within_the_bound(
    app: psycopg.Connection[Any], database: str, dsn: str, engine: Engine, effects: Effects, stack: ExitStack
) -> None:
    """The socket stays open and its keepalives are answered; only a limit of our own can tell."""
    url = make_url(database)
    proxy = stack.enter_context(Proxy(url.host or "", url.port or 0))
    proxied = url.set(port=proxy.port).render_as_string(hide_password=False)
    options = {"concurrency": 2, "poll_interval": "1h", "shutdown_timeout": "2s"}
    worker = WorkerProcess(proxied, WAKING, env={"EFFECTS_URL": database}, **options)  # type: ignore[arg-type]
    stack.enter_context(worker).wait_ready()
    add(engine, Woken())
    until(lambda: effects.count() == 1, what="a job before")
    proxy.silence()
    add(engine, Woken())
    until(lambda: effects.count() == 2, SILENCE_NOTICED, what="a job after the silence")
    worker.expect_alive()
    proxy.silence(new=True)
    assert worker.terminate(30) in (0, 3)


def test_a_stop_during_the_silence_ends_in_time(
    app: psycopg.Connection[Any], database: str, engine: Engine, effects: Effects, stack: ExitStack
) -> None:
    url = make_url(database)
    proxy = stack.enter_context(Proxy(url.host or "", url.port or 0))
    proxied = url.set(port=proxy.port).render_as_string(hide_password=False)
    options = {"concurrency": 1, "shutdown_timeout": "2s"}
    worker = WorkerProcess(proxied, LASTING, env={"EFFECTS_URL": database}, **options)  # type: ignore[arg-type]
    stack.enter_context(worker).wait_ready()
    add(engine, Lasting(seconds=30))
    until(lambda: effects.count() == 1, what="the job runs")
    proxy.silence(new=True)
    assert worker.terminate(2 + 1) == 3


# ---- the server


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        migrate(cluster.url())
        yield cluster


def test_an_immediate_restart_strands_no_job(cluster: Cluster, stack: ExitStack) -> None:
    """What ran is begun again, what waited is found, and no worker is started anew."""
    engine, effects = create_engine(cluster.url()), Effects(cluster.url())
    stack.callback(engine.dispose)
    for _ in range(2):
        stack.enter_context(WorkerProcess(cluster.url(), LASTING, concurrency=5)).wait_ready()
    add(engine, *(Lasting(seconds=0.05) for _ in range(200)))
    until(lambda: effects.count() > 30, what="they work")
    cluster.restart("immediate")
    engine.dispose()
    with psycopg.connect(cluster.dsn(), autocommit=True) as app:
        until(lambda: one(app, "SELECT count(*) FROM magik_jobs") == 0, 60, what="all jobs are done")
    done = {row.job_id for row in effects.rows() if row.ended}
    assert len(done) == 200
    assert "you don't own a lock" not in cluster.read_log()  # no lock is given back that was not held


def test_what_was_added_around_a_reconnect_starts_at_once(cluster: Cluster, stack: ExitStack) -> None:
    """With a poll interval of an hour only the look after LISTEN can find them."""
    engine, effects = create_engine(cluster.url()), Effects(cluster.url())
    stack.callback(engine.dispose)
    worker = stack.enter_context(WorkerProcess(cluster.url(), WAKING, concurrency=2, poll_interval="1h")).wait_ready()
    cluster.stop("fast")
    worker.wait_log("event=database_unreachable")
    engine.dispose()
    cluster.start()
    added: dict[Any, datetime] = {}
    with psycopg.connect(cluster.dsn(), autocommit=True) as app:

        def back() -> bool:
            row = app.execute(
                "INSERT INTO magik_jobs (job_class) VALUES ('Woken') RETURNING id, clock_timestamp()"
            ).fetchone()
            assert row is not None
            added[row[0]] = row[1]
            return "event=locking_connection_back" in worker.stderr()

        until(back, 20, every=0.1, what="the worker is back")
        back()
    until(lambda: effects.count() == len(added), 4, what="all have started")  # a full walk follows after 5 s


def test_a_read_only_spell_is_waited_for(
    app: psycopg.Connection[Any], superuser_dsn: str, database: str, dsn: str, engine: Engine, effects: Effects
) -> None:
    """A server that cannot be written to is no server."""
    name = make_url(database).database

    def end_all() -> None:
        """The worker's sessions and the jobs' own: the setting is a session's from its beginning."""
        for sessions in (f"{worker.app_name}%", "effects"):
            terminate(superuser_dsn, sessions)

    with psycopg.connect(superuser_dsn, autocommit=True) as admin, WorkerProcess(database, LASTING) as worker:
        worker.wait_ready()
        add(engine, *(Lasting(seconds=0.05) for _ in range(20)))
        engine.dispose()
        admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'.encode())
        end_all()
        worker.wait_log("event=database_unreachable error=.*MAGIK_SERVER_READ_ONLY")
        never(lambda: worker.stderr().count("database_unreachable") > 12, during=2.0, what="a hot loop")
        with WorkerProcess(database, LASTING) as late:
            assert late.wait() == 2
            assert "MAGIK_SERVER_READ_ONLY" in late.stderr()
        admin.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only'.encode())
        end_all()
        until(lambda: one(admin, "SELECT count(*) FROM magik_jobs") == 0, 60, what="all jobs are done")
        worker.expect_alive()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_the_databases_isolation_level_is_no_hindrance(
    app: psycopg.Connection[Any], superuser_dsn: str, database: str, stack: ExitStack, isolation: str, effects: Effects
) -> None:
    """Whatever isolation the database gives by default, jobs run and end."""
    name = make_url(database).database
    with psycopg.connect(superuser_dsn, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{isolation}'".encode())
    engine = create_engine(database)
    stack.callback(engine.dispose)
    workers = [stack.enter_context(WorkerProcess(database, WAKING, concurrency=4)).wait_ready() for _ in range(3)]
    for _ in range(50):
        add(engine, *(Woken() for _ in range(10)))
    until(lambda: one(app, "SELECT count(*) FROM magik_jobs") == 0, 25, what="all jobs are done")
    assert (effects.count(), effects.repeats()) == (500, [])
    assert not any("locking_connection_lost" in worker.stderr() for worker in workers)


# ---- other workers


def test_the_holder_of_the_flag_is_killed_again_and_again(
    app: psycopg.Connection[Any], database: str, dsn: str, effects: Effects, stack: ExitStack
) -> None:
    """Four idle workers, three of them killed while they wait for all; 2,000 enqueues, none lost, none late."""
    workers = [WorkerProcess(database, WAKING, concurrency=3, poll_interval="1h") for _ in range(4)]
    for worker in workers:
        stack.enter_context(worker).wait_ready()
    app.execute("CREATE TABLE added (job_id uuid PRIMARY KEY, at timestamptz)")

    def produce() -> None:
        """Twenty at a time, and no faster than the workers: what is measured is a wait for them, not behind others."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            for n in range(2_000):
                connection.execute("""
                    WITH job AS (INSERT INTO magik_jobs (job_class) VALUES ('Woken') RETURNING id)
                    INSERT INTO added SELECT id, clock_timestamp() FROM job""")
                if n % 20 == 0:
                    until(lambda: one(connection, "SELECT count(*) FROM magik_jobs") == 0, 20, what="all of them run")

    producer = threading.Thread(target=produce)
    producer.start()
    stack.callback(producer.join)
    for _ in range(3):
        holder = until(lambda: _holder(dsn, workers), what="somebody holds the flag")
        holder.kill()
        workers.remove(holder)
    producer.join()
    until(lambda: one(app, "SELECT count(*) FROM magik_jobs") == 0, 20, what="all jobs are done")
    worst = one(
        app,
        """
        SELECT extract(epoch FROM max(first - at)) FROM added
          JOIN (SELECT job_id, min(started) AS first FROM effects GROUP BY 1) e USING (job_id)""",
    )
    print(f"worst start {float(worst) * 1000:.0f} ms after its commit")
    assert one(app, "SELECT count(DISTINCT job_id) FROM effects") == 2_000
    assert worst < 1.1


def _holder(dsn: str, workers: list[WorkerProcess]) -> WorkerProcess | None:
    held = (worker for worker in workers if advisory_locks(dsn, f"{worker.app_name} locker")[TWO_KEYS])
    return next(held, None)


def test_a_namesake_does_not_keep_a_dead_ones_jobs(database: str, dsn: str, engine: Engine, effects: Effects) -> None:
    """Names are for people; claims follow the session."""
    same = {"app_name": "same", "concurrency": 1, "env": {"HOSTNAME": "same"}}
    with WorkerProcess(database, LASTING, **same) as a:  # type: ignore[arg-type]
        a.wait_ready()
        add(engine, Lasting(seconds=60))
        until(lambda: effects.count() == 1, what="the job runs")
        with WorkerProcess(database, LASTING, **same) as b:  # type: ignore[arg-type]
            b.wait_ready()
            a.kill()
            until(lambda: effects.count() == 2, what="it runs again")


def test_a_deploy_is_no_failure(app: psycopg.Connection[Any], database: str, engine: Engine, effects: Effects) -> None:
    """Three deploys of a job that outlasts the shutdown timeout use up none of its tries."""
    job = Lasting(seconds=60)
    add(engine, job)
    for n in range(1, 4):
        with WorkerProcess(database, LASTING, shutdown_timeout="100ms") as worker:
            until(lambda n=n: effects.count() == n, 20, what="the job runs")  # type: ignore[misc]
            until(lambda: one(app, "SELECT begun FROM magik_claims"), what="its note says so")
            assert worker.terminate() == 3
        assert app.execute("SELECT error_count, last_error FROM magik_jobs").fetchone() == (0, None)
    app.execute("UPDATE magik_jobs SET args = '{}'")
    with WorkerProcess(database, LASTING):
        until(lambda: one(app, "SELECT count(*) FROM magik_jobs") == 0, 20, what="the job ends well")
    assert effects.count() == 4


def test_a_frozen_worker_keeps_its_job_and_goes_on(
    app: psycopg.Connection[Any], database: str, dsn: str, engine: Engine, effects: Effects, stack: ExitStack
) -> None:
    a = stack.enter_context(WorkerProcess(database, LEDGER, concurrency=1)).wait_ready()
    add(engine, Posting(seconds=0.5))
    until(lambda: effects.count() == 1, what="the job runs")
    a.stop()
    stack.enter_context(WorkerProcess(database, LEDGER, concurrency=1, poll_interval="200ms")).wait_ready()
    never(lambda: effects.count() > 1, during=2.0, what="it ran beside itself")
    a.cont()
    until(lambda: one(app, "SELECT count(*) FROM magik_jobs") == 0, what="the job is done")
    assert one(app, "SELECT count(*) FROM entries") == 1
    assert effects.count() == 1
