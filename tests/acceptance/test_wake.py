"""A waiting worker starts a job within milliseconds of its commit, whoever made it due, and misses none."""

from __future__ import annotations

import random
import statistics
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session as OrmSession

from magik_sa import bulk_enqueue
from tests.controls import control
from tests.jobs.waking import Woken
from tests.tools.effects import Effects
from tests.tools.sessions import TWO_KEYS, advisory_locks
from tests.tools.waiting import never, until
from tests.tools.workers import WorkerProcess

WAKING = "tests.jobs.waking"
Enqueue = Callable[[], tuple[UUID, datetime]]
Heard = Callable[[int], list[str]]


@pytest.fixture
def app(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def worker(database: str) -> Iterator[WorkerProcess]:
    """Polls once an hour: whatever it finds it was woken for."""
    with WorkerProcess(database, WAKING, concurrency=5, poll_interval="1h") as worker:
        yield worker.wait_ready()


def clock(app: psycopg.Connection[Any]) -> datetime:
    row = app.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment


@pytest.fixture(params=["session.add", "INSERT", "UPDATE"])
def enqueue(request: pytest.FixtureRequest, engine: Engine, app: psycopg.Connection[Any]) -> Enqueue:
    """Makes one job due; its id, and the time right before the COMMIT."""

    def orm() -> tuple[UUID, datetime]:
        with OrmSession(engine) as session:
            job = Woken()
            session.add(job)
            session.flush()
            moment = session.scalars(select(func.clock_timestamp())).one()
            session.commit()
            return job.id, moment

    def raw() -> tuple[UUID, datetime]:
        [(id,)] = app.execute("INSERT INTO magik_jobs (job_class) VALUES ('Woken') RETURNING id").fetchall()
        moment = clock(app)
        app.commit()
        return id, moment

    def moved() -> tuple[UUID, datetime]:
        later = "INSERT INTO magik_jobs (job_class, run_at) VALUES ('Woken', now() + interval '1 h') RETURNING id"
        [(id,)] = app.execute(later).fetchall()
        app.commit()
        app.execute("UPDATE magik_jobs SET run_at = now(), version = version + 1 WHERE id = %s", (id,))
        moment = clock(app)
        app.commit()
        return id, moment

    return {"session.add": orm, "INSERT": raw, "UPDATE": moved}[request.param]


def waits(dsn: str) -> bool:
    """The flag of the only queue is up, so somebody waits."""
    return advisory_locks(dsn)[TWO_KEYS] == 1


def start_of(effects: Effects, id: UUID, timeout: float = 5.0) -> datetime:
    return until(lambda: effects.starts(id), timeout, every=0.005, what="the job runs")[0].started


def test_a_waiting_worker_starts_a_job_within_10_ms(
    worker: WorkerProcess, dsn: str, effects: Effects, enqueue: Enqueue
) -> None:
    """The median of thirty. What else the machine does can only add to it, so the best of three rounds counts."""
    medians: list[float] = []
    while min(medians, default=10) >= 10 and len(medians) < 3:
        medians.append(statistics.median(milliseconds_to_start(dsn, effects, enqueue) for _ in range(30)))
    print(f"commit to start: median {' '.join(f'{median:.1f}' for median in medians)} ms")
    assert min(medians) < 10


def milliseconds_to_start(dsn: str, effects: Effects, enqueue: Enqueue) -> float:
    until(lambda: waits(dsn), what="the worker waits")
    id, committed = enqueue()
    took = start_of(effects, id) - committed
    until(lambda: effects.starts(id)[0].ended, what="the job is done")
    return took.total_seconds() * 1000


def test_a_scheduled_job_starts_within_50_ms_of_its_time(
    worker: WorkerProcess, effects: Effects, engine: Engine
) -> None:
    late = []
    for n in range(6):
        with OrmSession(engine, expire_on_commit=False) as session, session.begin():
            job = Woken(delay="1s" if n else "4700ms")  # near the 5 s up to which a waiting worker is told
            session.add(job)
            session.flush()
            run_at = session.scalars(select(Woken.run_at).where(Woken.id == job.id)).one()
        late.append((start_of(effects, job.id, 8) - run_at).total_seconds() * 1000)
    print(f"late: median {statistics.median(late):.1f} ms, worst {max(late):.1f} ms")
    assert min(late) >= 0
    assert statistics.median(late) < 50


def test_a_job_scheduled_beyond_what_is_told_starts_in_time(
    worker: WorkerProcess, dsn: str, effects: Effects, engine: Engine
) -> None:
    """Nobody is notified of it: the waiting worker asks for the next time before that time comes.

    The best of three, as above.
    """
    late: list[float] = []
    while min(late, default=1) >= 0.5 and len(late) < 3:
        until(lambda: waits(dsn), what="the worker waits")
        with OrmSession(engine, expire_on_commit=False) as session, session.begin():
            session.add_all([job := Woken(delay="5500ms"), Woken(delay="2h")])
            session.flush()
            run_at = session.scalars(select(Woken.run_at).where(Woken.id == job.id)).one()
        late.append((start_of(effects, job.id, 8) - run_at).total_seconds())
    print(f"late: {' '.join(f'{seconds * 1000:.1f}' for seconds in late)} ms")
    assert 0 <= min(late) < 0.5


# ---- none is lost


class Producer(threading.Thread):
    """Adds jobs in transactions of their own; every second one stays open for up to 20 ms."""

    def __init__(self, dsn: str, count: int, seed: int) -> None:
        super().__init__(name=f"producer-{seed}", daemon=True)
        self.dsn, self.count, self.random = dsn, count, random.Random(seed)
        self.pause = threading.Event()

    def run(self) -> None:
        with psycopg.connect(self.dsn) as connection:
            for n in range(self.count):
                connection.execute("""
                    WITH job AS (INSERT INTO magik_jobs (job_class) VALUES ('Woken') RETURNING id)
                    INSERT INTO commits (job_id) SELECT id FROM job""")
                if n % 2:
                    self.pause.wait(self.random.uniform(0, 0.020))
                connection.execute("UPDATE commits SET at = clock_timestamp() WHERE at IS NULL")
                connection.commit()
                self.pause.wait(self.random.choice([0, 0, 0.010, 0.050]))


def test_no_wake_up_is_lost_in_2000_transactions(
    worker: WorkerProcess, app: psycopg.Connection[Any], dsn: str, effects: Effects
) -> None:
    app.execute("CREATE TABLE commits (job_id uuid PRIMARY KEY, at timestamptz)")
    app.commit()
    producers = [Producer(dsn, 500, seed) for seed in range(4)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join(60)
        assert not producer.is_alive()
    until(lambda: effects.count() >= 2_000, 20, every=0.05, what="2,000 jobs have run")
    row = app.execute("""
        SELECT count(*), count(DISTINCT c.job_id),
               percentile_disc(ARRAY[0.5, 0.9, 1]) WITHIN GROUP (ORDER BY e.started - c.at)
          FROM commits c JOIN effects e USING (job_id)""").fetchone()
    assert row is not None
    half, most, worst = (took.total_seconds() for took in row[2])
    print(f"commit to start: median {half * 1000:.1f} ms, worst {worst * 1000:.0f} ms")
    assert row[:2] == (2_000, 2_000)
    assert most < 2
    until(lambda: waits(dsn), what="the worker waits")


@pytest.mark.parametrize("second_look", ["yes", "no"])
def test_a_job_added_between_the_look_and_the_flag_is_found_by_the_second_look(
    database: str, dsn: str, effects: Effects, second_look: str
) -> None:
    """The control of the test above: without that look the job lies there until somebody else is woken."""
    program, env = control("added_in_between"), {"SECOND_LOOK": second_look}
    with WorkerProcess(database, WAKING, concurrency=1, poll_interval="1h", program=program, env=env) as worker:
        worker.wait_ready()
        until(lambda: waits(dsn), what="the worker waits")
        if second_look == "yes":
            until(effects.count, what="the job runs")
        else:
            never(effects.count, 3, what="the job ran")
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("INSERT INTO magik_jobs (job_class) VALUES ('Woken')")
            until(lambda: effects.count() == 2, what="both jobs run")


# ---- many at once


@pytest.fixture
def slow(database: str, dsn: str) -> Iterator[WorkerProcess]:
    """Waits, and polls after 20 s."""
    with WorkerProcess(database, WAKING, concurrency=5, poll_interval="20s") as worker:
        worker.wait_ready()
        until(lambda: waits(dsn), what="the worker waits")
        yield worker


@pytest.fixture
def heard(dsn: str) -> Iterator[Heard]:
    """The queues that another listener was told of by this session, one entry a notification; workers tell some too."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        [(oid,)] = connection.execute("SELECT 'magik_jobs'::regclass::oid").fetchall()
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"magik_{oid}")))

        def told_by(pid: int) -> list[str]:
            connection.execute("SELECT 1")  # its session was signalled before a commit was answered: it tells by now
            return [told.payload for told in connection.notifies(timeout=0) if told.pid == pid]

        yield told_by


def test_many_at_once_wake_a_worker_with_one_notification_for_each_queue(
    slow: WorkerProcess, engine: Engine, effects: Effects, heard: Heard
) -> None:
    with OrmSession(engine) as session:
        jobs = [Woken(queue=queue) for queue in ["default"] * 1_000 + ["silent"] * 10]
        assert bulk_enqueue(session, jobs) == 1_010
        assert bulk_enqueue(session, [Woken() for _ in range(10)]) == 10
        pid, committed = session.execute(select(func.pg_backend_pid(), func.clock_timestamp())).one()
        session.commit()
    until(effects.count, 5, every=0.005, what="a job runs, long before the next poll")
    took = (effects.rows()[0].started - committed).total_seconds()
    print(f"commit to the first start: {took * 1000:.0f} ms")
    until(lambda: effects.count() == 1_010, 20, every=0.05, what="all that are in its queue have run")
    assert heard(pid) == ["default"], "nobody waits for the other queue"


def test_those_that_wake_nobody_wait_for_the_next_poll(
    slow: WorkerProcess, engine: Engine, effects: Effects, heard: Heard
) -> None:
    with OrmSession(engine) as session, session.begin():
        bulk_enqueue(session, [Woken() for _ in range(10)], wake=False)
        pid = session.scalars(select(func.pg_backend_pid())).one()
    never(effects.count, 1, what="a job ran")
    assert heard(pid) == []
    with OrmSession(engine) as session, session.begin():
        session.add(Woken())
    until(lambda: effects.count() == 11, 5, what="whoever comes next wakes the worker for all")
