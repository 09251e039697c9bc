"""However many workers fight for a queue, each job runs once, and locks are held for what runs or soon will."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
import pytest

from tests.controls import control
from tests.jobs.burst import runs
from tests.tools.sessions import ONE_KEY, advisory_locks
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

MOST = 500  # jobs that a worker holds, however short they are
JOBS_HELD = """
SELECT l.pid, count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
 WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
   AND a.datname = current_database() AND a.application_name LIKE '% locker'
 GROUP BY 1"""


class MostHeld(threading.Thread):
    """Looks at pg_locks again and again while the block runs: the most job locks that one worker held at once."""

    def __init__(self, dsn: str) -> None:
        super().__init__(name="most-held", daemon=True)
        self.dsn, self.most, self.looks = dsn, 0, 0
        self._end = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._end.set()
        self.join(20)

    def run(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            while not self._end.wait(0.01):
                held = [count for _, count in connection.execute(JOBS_HELD.encode()).fetchall()]
                self.most, self.looks = max([self.most, *held]), self.looks + 1


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@contextmanager
def workers(
    database: str, file: Path, count: int, concurrency: int, without: str | None = None, **options: object
) -> Iterator[list[WorkerProcess]]:
    """So many ready workers of the jobs in `tests.jobs.burst`."""
    program = control(without) if without else ("-m", "magik_sa.worker")
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                WorkerProcess(
                    database,
                    "tests.jobs.burst",
                    concurrency=concurrency,
                    env={"BURST_FILE": str(file)},
                    program=program,
                    **options,  # type: ignore[arg-type]
                )
            )
            for _ in range(count)
        ]
        yield [worker.wait_ready() for worker in started]


def fill(app: psycopg.Connection[Any], count: int, cls: str = "Burst") -> None:
    app.execute("INSERT INTO magik_jobs (job_class) SELECT %s FROM generate_series(1, %s)", (cls, count))


def left(app: psycopg.Connection[Any], where: str = "true") -> int:
    query = f"SELECT count(*) FROM magik_jobs WHERE finished_at IS NULL AND expired_at IS NULL AND {where}"
    return int((app.execute(query.encode()).fetchone() or [0])[0])


def drained(app: psycopg.Connection[Any], timeout: float = 100, where: str = "true") -> None:
    until(lambda: left(app, where) == 0, timeout, every=0.1, what="queue empty")


def expect_nothing_held(app: psycopg.Connection[Any], dsn: str) -> None:
    until(lambda: advisory_locks(dsn)[ONE_KEY] == 0, 5, what="no job is locked")
    assert app.execute("SELECT count(*) FROM magik_claims").fetchone() == (0,)


def repeated(counted: Counter[Any]) -> dict[Any, int]:
    return {id: count for id, count in counted.items() if count > 1}


# ---- as many runs as jobs


@pytest.mark.slow
def test_two_workers_run_each_of_20000_jobs_once(
    app: psycopg.Connection[Any], database: str, dsn: str, file: Path
) -> None:
    fill(app, 20_000)
    with workers(database, file, 2, 10), MostHeld(dsn) as held:
        drained(app)
        expect_nothing_held(app, dsn)
    counted = runs(file)
    assert (len(counted), repeated(counted)) == (20_000, {})
    assert 0 < held.most <= MOST
    assert held.looks > 100


def test_four_workers_that_wait_run_each_of_2000_jobs_once(
    app: psycopg.Connection[Any], database: str, dsn: str, file: Path
) -> None:
    """All of them are woken by one statement, and jobs end within a millisecond."""
    with workers(database, file, 4, 4, poll_interval="100ms"):
        for burst in range(1, 4):
            fill(app, 2_000)
            drained(app)
            assert (len(runs(file)), repeated(runs(file))) == (2_000 * burst, {})
        expect_nothing_held(app, dsn)


def test_each_job_runs_once_when_every_claim_sorts(
    app: psycopg.Connection[Any], database: str, dsn: str, file: Path
) -> None:
    """Without the claim's index nothing but a sequential scan and a sort is left to the planner."""
    app.execute("DROP INDEX magik_jobs_claim")
    fill(app, 10_000)
    with workers(database, file, 3, 4) as three, MostHeld(dsn) as held:
        until(lambda: len(runs(file)) > 1_500, 60, every=0.1, what="1,500 runs")
        assert [worker.terminate() for worker in three] == [0, 0, 0]
        expect_nothing_held(app, dsn)
    assert repeated(runs(file)) == {}
    assert len(runs(file)) + left(app) == 10_000
    assert 0 < held.most <= MOST


def test_without_the_reread_jobs_run_twice(app: psycopg.Connection[Any], database: str, file: Path) -> None:
    """The control of the tests above. The sort of a long queue leaves a claim time to fall behind."""
    app.execute("DROP INDEX magik_jobs_claim")
    fill(app, 10_000)
    with workers(database, file, 3, 4, without="without_the_reread"):
        until(lambda: repeated(runs(file)), 60, every=0.1, what="a job that ran twice")


def test_without_the_fence_a_claim_locks_the_table(
    app: psycopg.Connection[Any], database: str, dsn: str, file: Path
) -> None:
    """The control of the tests that count locks."""
    app.execute("DROP INDEX magik_jobs_claim")
    fill(app, 1_500)
    with workers(database, file, 1, 4, without="without_the_fence"), MostHeld(dsn) as held:
        until(lambda: held.most, what="a claim")
        until(lambda: held.most > 1_000, what="more locks than jobs that may run")


# ---- no lock is left


def test_whatever_becomes_of_a_job_its_lock_goes(
    app: psycopg.Connection[Any], database: str, dsn: str, file: Path
) -> None:
    """Thousands of jobs that end well, fail and come again, are of unknown classes, or are deleted while they run."""
    fill(app, 1_500)
    fill(app, 600, "BurstFails")
    fill(app, 300, "BurstOfAnotherProgram")
    fill(app, 600, "BurstLasts")
    with workers(database, file, 2, 5) as both, MostHeld(dsn) as held:
        deleted = 0

        def some_deleted() -> bool:
            nonlocal deleted
            if not left(app, "job_class = 'BurstLasts'"):
                fill(app, 100, "BurstLasts")
            deleted += app.execute("""
                DELETE FROM magik_jobs
                 WHERE job_class = 'BurstLasts' AND id IN (SELECT job_id FROM magik_claims)""").rowcount
            return deleted > 50

        until(some_deleted, 60, every=0.001, what="so many were in hand")
        drained(app, where="job_class <> 'BurstOfAnotherProgram'")
        expect_nothing_held(app, dsn)
        assert all(worker.returncode is None for worker in both)
        flags = advisory_locks(dsn)
        assert sum(flags.values()) <= 1  # the flag of the only queue, with the worker that waits for it
    assert 0 < held.most <= MOST
    assert left(app) == 300
    assert not any("locking_connection_lost" in worker.stderr() for worker in both)
