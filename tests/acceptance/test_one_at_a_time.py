"""While a job runs nobody starts it again: neither its key, nor how long it lasts, nor any timer does."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session as OrmSession

from tests.jobs.lasting import Lasting, LastingKeyed, LastingUntilTold
from tests.tools.effects import Effects
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

LASTING = "tests.jobs.lasting"


def test_a_key_that_runs_is_neither_queued_nor_run_again(
    app: psycopg.Connection[Any], database: str, engine: Engine, effects: Effects
) -> None:
    """Ten transactions add it while it runs; the running row is not touched, and their own rows are there."""
    app.execute("CREATE TABLE orders (number integer)")
    job = LastingUntilTold(tenant_id=1)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(WorkerProcess(database, LASTING, concurrency=1)).wait_ready()
        with OrmSession(engine) as session, session.begin():
            session.add(job)
        until(lambda: effects.starts(job.id), what="the job runs")
        before = app.execute("SELECT * FROM magik_jobs").fetchall()
        for number in range(10):
            with OrmSession(engine) as session, session.begin():
                session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
                session.add(again := LastingUntilTold(tenant_id=1))
                session.flush()
                assert (again.is_repeat, again.repeat_of) == (True, job.id)
        assert effects.finished() == 0, "the job still runs"
        assert app.execute("SELECT * FROM magik_jobs").fetchall() == before
        app.execute("CREATE TABLE told ()")
        until(lambda: app.execute("SELECT count(*) FROM magik_jobs").fetchone() == (0,), what="the job is done")
    assert app.execute("SELECT count(*) FROM orders").fetchone() == (10,)
    assert (effects.count(), effects.overlaps("LastingUntilTold", same_job=False)) == (1, [])


def test_a_job_that_outlasts_every_timer_runs_once(
    app: psycopg.Connection[Any], database: str, engine: Engine, effects: Effects
) -> None:
    """Longer than poll, hint, the locking connection's heartbeat (10 s) and the server's keepalives."""
    timers = {"poll_interval": "50ms", "shutdown_timeout": "100ms", "database_timeout": "100ms"}
    with ExitStack() as stack:
        workers = [stack.enter_context(WorkerProcess(database, LASTING, concurrency=1, **timers)) for _ in range(3)]  # type: ignore[arg-type]
        for worker in workers:
            worker.wait_ready()
        with OrmSession(engine) as session, session.begin():
            session.add(Lasting(seconds=11.5))
        until(lambda: app.execute("SELECT count(*) FROM magik_jobs").fetchone() == (0,), 20, what="the job is done")
        until(lambda: any("event=job_" in worker.stderr() for worker in workers), what="its worker says so")
        for worker in workers:
            worker.expect_alive()
    assert (effects.count(), effects.finished()) == (1, 1)
    assert sum(worker.stderr().count("event=job_") for worker in workers) == 1


@pytest.mark.parametrize(("workers", "concurrency"), [(2, 1), (1, 2)], ids=["two workers", "one with two threads"])
def test_two_rows_of_one_key_do_not_run_beside_each_other(
    app: psycopg.Connection[Any], database: str, effects: Effects, workers: int, concurrency: int
) -> None:
    """Without the index nothing keeps the second row out; then the lock on the key does."""
    app.execute("DROP INDEX magik_jobs_key")
    with ExitStack() as stack:
        for _ in range(workers):
            stack.enter_context(WorkerProcess(database, LASTING, concurrency=concurrency)).wait_ready()
        app.execute(r"""
            INSERT INTO magik_jobs (job_class, args, key_digest)
            VALUES ('LastingKeyed', '{"tenant_id": 1, "seconds": 0.7}', '\x01'),
                   ('LastingKeyed', '{"tenant_id": 1, "seconds": 0.7}', '\x01')""")
        until(lambda: app.execute("SELECT count(*) FROM magik_jobs").fetchone() == (0,), what="both are done")
    first, second = effects.rows("LastingKeyed")
    assert first.job_id != second.job_id
    assert first.ended is not None
    assert first.ended <= second.started


KEY_LOCK = "hashtextextended(job_class || encode(key_digest, 'hex'), -'magik_jobs'::regclass::oid::bigint)"


def test_a_job_whose_key_was_not_free_yet_starts_as_soon_as_it_is(
    app: psycopg.Connection[Any], database: str, dsn: str, engine: Engine, effects: Effects
) -> None:
    """As the next of a key does, between the commit and the unlock of the one before. The test holds the lock."""
    job = LastingKeyed(tenant_id=1, delay="1s")
    with OrmSession(engine) as session, session.begin():
        session.add(job)
    with psycopg.connect(dsn) as holder:
        holder.execute(f"SELECT pg_advisory_lock({KEY_LOCK}) FROM magik_jobs".encode())
        with WorkerProcess(database, LASTING, concurrency=1, poll_interval="60s") as worker:
            worker.wait_ready()
            due = "SELECT clock_timestamp() > run_at + interval '50 ms' FROM magik_jobs"
            until(lambda: (app.execute(due).fetchone() or [False])[0], what="it has been refused")
            assert effects.count() == 0
            holder.execute("SELECT pg_advisory_unlock_all()")
            until(effects.count, 4, what="it runs")  # a full walk follows after 5 s
