"""While a thread is free and a job is due it runs, the urgent first; and what others hold costs a claim nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest

from tests.acceptance.test_once_each import MostHeld
from tests.controls import control
from tests.jobs.fair import Start, starts
from tests.tools.process import is_frozen
from tests.tools.sessions import ONE_KEY, advisory_locks, pids
from tests.tools.waiting import NotInTime, until
from tests.tools.workers import WorkerProcess

LOCK_ALL = """
SELECT count(pg_try_advisory_lock(uuid_hash_extended(id, 'magik_jobs'::regclass::oid::bigint))) FROM magik_jobs"""

LIMIT = 2 + 5  # jobs that a worker may hold: what runs, and what its two threads start within 50 ms


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "starts"


def fair(database: str, file: Path, without: str | None = None, **options: Any) -> WorkerProcess:
    """A worker of two threads, which polls every 20 seconds."""
    program = control(without) if without else ("-m", "magik_sa.worker")
    env = {"FAIR_FILE": str(file)}
    options = {"concurrency": 2, "poll_interval": "20s", **options}
    return WorkerProcess(database, "tests.jobs.fair", env=env, program=program, **options)


def add(
    app: psycopg.Connection[Any], n: int, priority: int = 100, age: str = "0", seconds: float = 0.02, **more: bool
) -> list[UUID]:
    rows = app.execute(
        "INSERT INTO magik_jobs (job_class, priority, run_at, args)"
        " SELECT 'Fair', %s, now() - %s::interval, %s::jsonb FROM generate_series(1, %s) RETURNING id",
        (priority, age, json.dumps({"seconds": seconds, **more}), n),
    )
    return [id for (id,) in rows.fetchall()]


def started(file: Path, n: int, timeout: float = 20) -> list[Start]:
    until(lambda: len(starts(file)) >= n, timeout, every=0.02, what=f"{n} starts")
    return starts(file)


# ---- order, and no pause


def add_some_that_freeze(app: psycopg.Connection[Any], n: int) -> None:
    """The worker freezes at the start of the 30th, while others are due."""
    add(app, 29)
    add(app, 1, freezes=True)
    add(app, n - 30)


class Joined(NamedTuple):
    """Jobs that were added while the worker was frozen: so many had started before, and the moment it went on."""

    after: int
    at: float

    def longest_pause(self, file: Path) -> float:
        """Between two starts on one side of it; what lies between the sides is the test's."""
        before, after = starts(file)[: self.after], starts(file)[self.after :]
        moments = [[start.at for start in before], [self.at, *(start.at for start in after)]]
        return max(later - earlier for each in moments for earlier, later in pairwise(each))


def joined(worker: WorkerProcess, file: Path, adding: Callable[[], object]) -> Joined:
    """Nothing is started between the commit of what is added and the moment that counts as that."""
    until(lambda: is_frozen(worker.pid), 20, what="the worker is frozen")
    adding()
    after = len(starts(file))
    worker.cont()
    return Joined(after, time.monotonic())


def before_the_urgent(app: psycopg.Connection[Any], database: str, file: Path, without: str | None = None) -> int:
    """How many jobs were started between the commit of an urgent job and its own start."""
    added: list[UUID] = []
    add_some_that_freeze(app, 40)
    with fair(database, file, without) as worker:
        joining = joined(worker, file, lambda: added.extend([*add(app, 60), *add(app, 1, priority=1)]))
        after = [start.id for start in started(file, 101)[joining.after :]]
        assert joining.longest_pause(file) < 1
    return after.index(added[-1])


def test_an_urgent_job_is_started_before_all_that_is_not_about_to_start(
    app: psycopg.Connection[Any], database: str, file: Path
) -> None:
    """Two threads start five jobs of 20 ms within 50 ms: so many may have been claimed for them before, and two more
    where both were free.
    """
    assert before_the_urgent(app, database, file) <= LIMIT


def test_without_a_look_into_the_gaps_it_waits(app: psycopg.Connection[Any], database: str, file: Path) -> None:
    """The control: a priority that the worker has not met before."""
    assert before_the_urgent(app, database, file, without="without_the_gaps") > 20


def work_what_lies_before_the_marks(
    app: psycopg.Connection[Any], database: str, file: Path, without: str | None = None
) -> None:
    add_some_that_freeze(app, 60)
    with fair(database, file, without) as worker:
        joining = joined(worker, file, lambda: add(app, 40, age="1 h"))
        started(file, 100, 10)
        assert joining.longest_pause(file) < 1


def test_while_jobs_are_due_no_pause_is_longer_than_a_second(
    app: psycopg.Connection[Any], database: str, file: Path
) -> None:
    """Also those that come with a time from long ago, where the claims have passed by."""
    work_what_lies_before_the_marks(app, database, file)


def test_without_the_full_walk_they_are_left(app: psycopg.Connection[Any], database: str, file: Path) -> None:
    """The control."""
    with pytest.raises(NotInTime, match="100 starts"):
        work_what_lies_before_the_marks(app, database, file, without="without_the_full_walk")
    assert len(starts(file)) == 60


def held_behind_a_long_one(
    app: psycopg.Connection[Any], database: str, dsn: str, file: Path, without: str | None = None
) -> None:
    """A worker that has met short jobs only gets a long one with many behind it; they are to be others' in a second."""
    add(app, 150, seconds=0.001)
    with fair(database, file, without, concurrency=1, shutdown_timeout="100ms"):
        started(file, 150)
        with app.transaction():
            add(app, 1, seconds=20, age="100 ms")  # before the others, and after what the claims have passed by
            add(app, 40, seconds=0.001)
        started(file, 151)
        until(lambda: advisory_locks(dsn)[ONE_KEY] == 1, 1.5, every=0.02, what="the long one is all that it holds")
    assert len(starts(file)) == 151


def test_jobs_behind_one_that_turns_out_long_are_given_back(
    app: psycopg.Connection[Any], database: str, dsn: str, file: Path
) -> None:
    held_behind_a_long_one(app, database, dsn, file)


def test_without_patience_they_wait(app: psycopg.Connection[Any], database: str, dsn: str, file: Path) -> None:
    """The control."""
    with pytest.raises(NotInTime, match="the long one is all that it holds"):
        held_behind_a_long_one(app, database, dsn, file, without="without_patience")


# ---- a flood, its head locked by others

CALLS = """
SELECT coalesce(sum(calls), 0)::int FROM pg_stat_statements
 WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND query LIKE '%pg_try_advisory_lock%LIMIT%'"""
READ = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'magik_jobs_claim'"
LOCKED, DUE, FINISHED = 5_000, 10_000, 150


class Flood:
    """What a worker of two threads did until it had finished 150 jobs of 20 ms beside 5,000 that others hold."""

    def __init__(self, app: psycopg.Connection[Any], dsn: str, file: Path, worker: WorkerProcess) -> None:
        """All but the locks is counted when the worker's sessions are gone: a session tells of the last at its end."""
        before, began = _one(app, READ), time.monotonic()
        with worker, MostHeld(dsn) as held:
            until(lambda: len(starts(file)) >= FINISHED, 60, every=0.02, what="so many jobs")
            self.most_held = held.most
            worker.terminate()
        until(lambda: not pids(dsn, f"{worker.app_name} %"), what="its sessions are gone")
        self.seconds = time.monotonic() - began
        calls = _one(app, CALLS)
        self.claims_for_each = calls / (DUE + LOCKED - _one(app, "SELECT count(*) FROM magik_jobs"))
        self.rows_for_each = (_one(app, READ) - before - self.full_walks * (LOCKED + 100)) / calls

    @property
    def full_walks(self) -> int:
        """At most: one at first, then one every five seconds."""
        return 1 + int(self.seconds / 5)


def _one(app: psycopg.Connection[Any], query: str) -> int:
    [(value,)] = app.execute(query.encode()).fetchall()
    return int(value)


@pytest.fixture
def flooded(app: psycopg.Connection[Any], superuser_dsn: str, dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """The application's connection, with the queue full and its head locked by another session."""
    with psycopg.connect(superuser_dsn, autocommit=True) as superuser:
        superuser.execute("CREATE EXTENSION pg_stat_statements")
    app.execute("ALTER TABLE magik_jobs DISABLE TRIGGER USER")
    add(app, LOCKED, age="2 h")
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute(LOCK_ALL)
        add(app, DUE, age="1 h")
        yield app


def test_under_a_flood_claims_are_few_and_read_little(
    flooded: psycopg.Connection[Any], database: str, dsn: str, file: Path
) -> None:
    flood = Flood(flooded, dsn, file, fair(database, file))
    assert flood.claims_for_each <= 2
    assert flood.rows_for_each <= 20
    assert 0 < flood.most_held <= LIMIT


def test_without_marks_each_claim_reads_what_others_hold(
    flooded: psycopg.Connection[Any], database: str, dsn: str, file: Path
) -> None:
    """The control."""
    flood = Flood(flooded, dsn, file, fair(database, file, without="without_the_marks"))
    assert flood.rows_for_each > LOCKED / 2


def test_without_a_limit_a_worker_claims_and_holds_more_than_it_runs(
    flooded: psycopg.Connection[Any], database: str, dsn: str, file: Path
) -> None:
    """The control."""
    flood = Flood(flooded, dsn, file, fair(database, file, without="without_the_limit"))
    assert flood.most_held > 2 * LIMIT
