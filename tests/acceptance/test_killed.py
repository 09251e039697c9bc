"""A worker is killed: its jobs start again at once where another waits, and what they write counts once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session as OrmSession

from tests.controls import control
from tests.jobs.ledger import Posting, open_books
from tests.tools.effects import Effects
from tests.tools.sessions import ONE_KEY, advisory_locks, pids, terminate
from tests.tools.waiting import never, until
from tests.tools.workers import WorkerProcess

LEDGER = "tests.jobs.ledger"


@pytest.fixture
def app(dsn: str, engine: Engine) -> Iterator[psycopg.Connection[Any]]:
    open_books(engine)
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def add(engine: Engine) -> Callable[..., None]:
    """Adds jobs in a transaction of their own."""

    def add(*jobs: Posting) -> None:
        with OrmSession(engine) as session, session.begin():
            session.add_all(jobs)

    return add


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends with the test what is entered into it."""
    with ExitStack() as stack:
        yield stack


def now(app: psycopg.Connection[Any]) -> datetime:
    """By the database's clock, as the effects' times are."""
    row = app.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment


def entries(app: psycopg.Connection[Any]) -> list[tuple[int, int]]:
    """How many entries each job has, and from how many workers, without the jobs' ids."""
    return app.execute("SELECT count(*), count(DISTINCT worker) FROM entries GROUP BY job_id").fetchall()


def live(app: psycopg.Connection[Any]) -> int:
    return int((app.execute("SELECT count(*) FROM magik_jobs").fetchone() or [0])[0])


def expect_nothing_held(app: psycopg.Connection[Any], dsn: str) -> None:
    until(lambda: advisory_locks(dsn)[ONE_KEY] == 0, what="no job is locked")
    until(lambda: app.execute("SELECT count(*) FROM magik_claims").fetchone() == (0,), what="no job is noted")


def killed(worker: WorkerProcess, app: psycopg.Connection[Any]) -> datetime:
    moment = now(app)
    worker.kill()
    return moment


def delays(effects: Effects, dead: int, since: datetime) -> list[float]:
    """Seconds from a worker's death to each start elsewhere."""
    return [(row.started - since).total_seconds() for row in effects.rows() if row.pid != dead]


def test_ten_jobs_of_a_killed_worker_start_again_within_a_second(
    app: psycopg.Connection[Any], database: str, dsn: str, add: Callable[..., None], effects: Effects, stack: ExitStack
) -> None:
    with WorkerProcess(database, LEDGER, concurrency=10) as a:
        a.wait_ready()
        add(*(Posting(seconds=60) for _ in range(10)))
        until(lambda: effects.count() == 10, what="ten jobs run")
        until(lambda: begun(app) == 10, what="ten notes say so")
        b = stack.enter_context(WorkerProcess(database, LEDGER, concurrency=10)).wait_ready()
        until(lambda: advisory_locks(dsn, f"{b.app_name} locker")[2] == 1, what="the other worker waits")
        moment = killed(a, app)
        until(lambda: len(delays(effects, a.pid, moment)) == 10, 5, what="ten jobs run again")
        took = delays(effects, a.pid, moment)
        print(f"started again after {min(took) * 1000:.0f} to {max(took) * 1000:.0f} ms")
        assert max(took) < 1.0
        until(lambda: live(app) == 0, what="all jobs are done")
        expect_nothing_held(app, dsn)
    assert entries(app) == [(1, 1)] * 10
    assert {row.note for row in effects.rows() if row.pid != a.pid} == {"attempt 2"}


def begun(app: psycopg.Connection[Any]) -> int:
    return int((app.execute("SELECT count(*) FROM magik_claims WHERE begun").fetchone() or [0])[0])


def test_without_the_hint_a_killed_workers_jobs_wait_for_the_poll(
    app: psycopg.Connection[Any], database: str, dsn: str, add: Callable[..., None], effects: Effects
) -> None:
    """The control of the test above."""
    program = control("without_the_hint")
    with WorkerProcess(database, LEDGER, concurrency=1) as a:
        a.wait_ready()
        add(Posting(seconds=60))
        until(lambda: effects.count() == 1, what="the job runs")
        with WorkerProcess(database, LEDGER, concurrency=1, poll_interval="5s", program=program) as b:
            b.wait_ready()
            until(lambda: advisory_locks(dsn, f"{b.app_name} locker")[2] == 1, what="the other worker waits")
            moment = killed(a, app)
            until(lambda: delays(effects, a.pid, moment), 20, what="the job runs again")
            assert min(delays(effects, a.pid, moment)) > 1.0


def test_a_worker_that_starts_later_takes_a_killed_ones_jobs_at_once(
    app: psycopg.Connection[Any], database: str, dsn: str, add: Callable[..., None], effects: Effects
) -> None:
    """No reaper, no lease, no setting; and the attempt is counted."""
    job = Posting(seconds=60, again=60)
    with WorkerProcess(database, LEDGER, concurrency=1) as a:
        a.wait_ready()
        add(job)
        until(lambda: begun(app) == 1, what="the job runs")
        a.kill()
    with WorkerProcess(database, LEDGER, concurrency=1) as b:
        b.wait_ready()
        until(lambda: len(effects.starts(job.id)) == 2, what="the job runs again")
        row = app.execute("SELECT error_count, left(last_error, 31) FROM magik_jobs").fetchone()
        assert row == (1, "RunError: MAGIK_JOB_INTERRUPTED")
        assert entries(app) == []


@pytest.mark.parametrize("wait", [0.0, 0.2, 0.7])
def test_a_job_added_after_the_death_of_the_waiting_worker_starts_within_a_second(
    app: psycopg.Connection[Any],
    database: str,
    dsn: str,
    add: Callable[..., None],
    effects: Effects,
    stack: ExitStack,
    wait: float,
) -> None:
    """Two wait, one of them with the flag; who adds a job after its death notifies nobody."""
    with WorkerProcess(database, LEDGER, concurrency=1, poll_interval="1h") as a:
        until(lambda: advisory_locks(dsn, f"{a.app_name} locker")[2] == 1, 20, what="the first waits with the flag")
        b = stack.enter_context(WorkerProcess(database, LEDGER, concurrency=1, poll_interval="1h")).wait_ready()
        until(lambda: pids(dsn, f"{b.app_name} locker", query="%recursive%"), what="the second waits beside it")
        moment = killed(a, app)
        never(effects.count, wait)
        moment = now(app)
        add(Posting())
        until(effects.count, 5, what="the job runs")
        took = min(delays(effects, a.pid, moment))
        print(f"started {took * 1000:.0f} ms after its enqueue")
        assert took < 1.1


def test_a_worker_goes_on_when_its_locking_connection_is_terminated(
    app: psycopg.Connection[Any], database: str, dsn: str, add: Callable[..., None], effects: Effects
) -> None:
    with WorkerProcess(database, LEDGER, concurrency=4, poll_interval="1h") as worker:
        worker.wait_ready()

        def goes_on(losses: int) -> None:
            """Another job starts after the loss of the connection, and there is one to be lost the next time."""
            moment, job = now(app), Posting(priority=1)
            assert terminate(dsn, f"{worker.app_name} locker")
            add(job)
            until(lambda: effects.starts(job.id), what="another job starts")
            assert effects.starts(job.id)[0].started - moment < timedelta(seconds=2)
            until(lambda: worker.stderr().count("event=locking_connection_back") == losses, what="it is back")

        for n in range(1, 5):
            count = effects.count()
            add(*(Posting(seconds=0.5) for _ in range(6)))
            until(lambda count=count: effects.count() > count, what="jobs run")  # type: ignore[misc]
            goes_on(n)
        until(lambda: live(app) == 0, what="all jobs are done")
        expect_nothing_held(app, dsn)
        goes_on(5)
        until(lambda: live(app) == 0, what="the marker is done")
        expect_nothing_held(app, dsn)
        assert worker.terminate() == 0
    assert entries(app) == [(1, 1)] * (4 * 6 + 5)
    assert effects.repeats() == []
    assert worker.stderr().count("event=locking_connection_back") == 5
    assert "superseded" not in worker.stderr().replace("superseded=0", "")


# How many of the others there still were in the moment in which it was noted.
WHAT_WAS_LEFT = """
CREATE TABLE left_then (count integer);
CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF EXISTS (SELECT FROM magik_jobs WHERE id = new.job_id AND job_class = 'Lasting') THEN
    INSERT INTO left_then SELECT count(*) FROM magik_jobs WHERE job_class = 'Burst';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER look AFTER UPDATE ON magik_claims FOR EACH ROW WHEN (new.begun) EXECUTE FUNCTION look()"""


def test_a_run_is_known_to_have_begun_however_busy_its_worker_is(
    app: psycopg.Connection[Any], database: str, effects: Effects, tmp_path: Path
) -> None:
    """Jobs end all the time, so that the locker has mail whenever it looks."""
    app.execute("INSERT INTO magik_jobs (job_class, args) VALUES ('Lasting', '{\"seconds\": 60}')")
    app.execute("INSERT INTO magik_jobs (job_class, priority) SELECT 'Burst', 101 FROM generate_series(1, 6000)")
    app.execute(WHAT_WAS_LEFT)
    env = {"BURST_FILE": str(tmp_path / "runs")}
    with WorkerProcess(database, "tests.jobs.burst", "tests.jobs.lasting", concurrency=8, env=env):
        left = until(lambda: app.execute("SELECT count FROM left_then").fetchone(), 20, what="its note says so")
        assert left[0] > 1_000, "its worker was not busy any more"
