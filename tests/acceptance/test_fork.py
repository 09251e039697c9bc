"""A job may fork: the child harms no connection of the worker, keeps nothing of it alive, and does not become one."""

from __future__ import annotations

import os
import signal
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import sessionmaker

from magik_sa import Job
from tests.jobs.forking import AfterFork, Forking, Idle, Leaving, Spawning
from tests.tools.effects import Effects
from tests.tools.sessions import pids
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

MODULE = "tests.jobs.forking"
DRIVERS = ["psycopg", "psycopg2"]
ENDS = {"nothing": 0, "uses": 0, "disposes": 0, "exits": 0, "raises": 1, "speaks": 1}


@pytest.fixture(autouse=True)
def notes(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE notes (what text)"))


def add(Session: sessionmaker[OrmSession], *jobs: Job) -> list[UUID]:
    with Session.begin() as session:
        session.add_all(jobs)
    return [job.id for job in jobs]


def noted(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        return [what for (what,) in connection.execute("SELECT what FROM notes ORDER BY what")]


def left(dsn: str) -> list[tuple[str, str]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT job_class, last_error FROM magik_jobs").fetchall()


def settled(dsn: str, worker: WorkerProcess) -> set[int] | None:
    """The worker's connections, once they are the locking one and one for each of two threads."""
    found = set(pids(dsn, f"{worker.app_name} %"))
    return found if len(found) == 3 else None


@pytest.mark.parametrize("cls", [Forking, Spawning])
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_child_leaves_the_connections_of_the_worker_alone(
    database: str, dsn: str, effects: Effects, Session: sessionmaker[OrmSession], driver: str, cls: type[Forking]
) -> None:
    jobs = add(Session, *(cls(how=how) for how in ENDS))
    url = database.replace("+psycopg:", f"+{driver}:")
    with WorkerProcess(database, MODULE, database_url=url, concurrency=2) as worker:
        worker.wait_ready()
        connections = until(lambda: settled(dsn, worker), what="those of the start's checks are gone")
        until(lambda: effects.finished(cls.__name__) == len(ENDS), timeout=30, what=worker.stderr())
        (marker,) = add(Session, AfterFork())
        until(lambda: effects.starts(marker), what="the worker is well")
        until(lambda: left(dsn) == [], what=f"all are done: {left(dsn)}")
        until(lambda: settled(dsn, worker) == connections, what="they are the same; those of the children are gone")
        assert worker.terminate() == 0
    assert noted(dsn) == sorted(
        ["of the job"] * len(ENDS) + ["of the child"] * 2 + [f"child {code}" for code in ENDS.values()]
    )
    assert [len(effects.starts(job)) for job in jobs] == [1] * len(ENDS)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_child_that_outlives_a_killed_worker_holds_up_nobody(
    database: str, dsn: str, effects: Effects, Session: sessionmaker[OrmSession], driver: str
) -> None:
    """Neither the lock of the job nor the row that its open transaction had locked."""
    with Session.begin() as session:
        session.execute(text("INSERT INTO notes VALUES ('row')"))
    (job,) = add(Session, Leaving(seconds=30))
    url = database.replace("+psycopg:", f"+{driver}:")
    with WorkerProcess(database, MODULE, database_url=url, concurrency=1) as worker:
        worker.wait_ready()
        until(lambda: len(effects.starts(job)) == 2, what="the child is there")
        with WorkerProcess(database, MODULE, database_url=url, concurrency=1) as other:
            other.wait_ready()
            worker.kill()
            until(lambda: left(dsn) == [], what="the other worker did it, while the child lives")
            assert noted(dsn) == ["row!"]
            first, child, second = (row.note for row in effects.starts(job))
            assert (first, second) == ("attempt 1", "attempt 2")
            os.kill(int(child.removeprefix("child ")), signal.SIGKILL)  # it still lived
            assert other.terminate() == 0


def test_a_signal_to_the_group_ends_the_child_and_drains_the_worker(
    database: str, effects: Effects, Session: sessionmaker[OrmSession]
) -> None:
    """The child inherits the handler; were it to tell the worker, that would be a second signal: leave at once."""
    (job,) = add(Session, Idle())
    with WorkerProcess(database, MODULE, concurrency=1) as worker:
        worker.wait_ready()
        until(lambda: len(effects.starts(job)) == 2, what="the child is there")
        assert worker.terminate() == 0, worker.stderr()
    assert [row.note for row in effects.starts(job)] == ["", "child", "child -15"]


def test_a_fork_is_no_stop_of_one_of_several_processes(
    database: str, dsn: str, effects: Effects, Session: sessionmaker[OrmSession]
) -> None:
    """The child has the tie to the supervisor, and a thread less that listens there."""
    jobs = add(Session, *(Forking(how="uses") for _ in range(2)))
    with WorkerProcess(database, MODULE, processes=2, concurrency=1) as worker:
        until(lambda: effects.finished() == len(jobs), 20, what=worker.stderr())
        until(lambda: left(dsn) == [], what="both are done")
        worker.expect_alive()
        assert "draining" not in worker.stderr()
        assert worker.terminate() == 0
