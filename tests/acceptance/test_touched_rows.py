"""A job whose row is in somebody's open transaction waits for that; no thread of a worker does, and no other job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session as OrmSession

from magik_sa import bulk_enqueue
from tests.controls import control
from tests.jobs.burst import Burst, runs
from tests.tools.waiting import never, until
from tests.tools.workers import WorkerProcess

HEAD = 300  # rows at the head of the queue, many times the threads

TOUCHES = (
    "SELECT FROM magik_jobs WHERE priority = 1 FOR UPDATE",
    "UPDATE magik_jobs SET priority = 2 WHERE priority = 1",
    "DELETE FROM magik_jobs WHERE priority = 1",
    "SELECT FROM magik_jobs WHERE priority = 1 FOR KEY SHARE",  # as a foreign key of the application's to a job does
)


def added(engine: Engine, number: int, priority: int = 100) -> set[UUID]:
    jobs = [Burst(priority=priority) for _ in range(number)]
    with OrmSession(engine) as session, session.begin():
        bulk_enqueue(session, jobs)
    return {job.id for job in jobs}


@contextmanager
def touched(dsn: str, statement: str) -> Iterator[Callable[[], None]]:
    """An application's transaction that has run `statement` and stays open until it is ended."""
    with psycopg.connect(dsn) as connection:
        connection.execute(statement.encode())
        yield connection.rollback


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def worker(database: str, file: Path, **options: Any) -> WorkerProcess:
    environment = {"BURST_FILE": str(file)}
    return WorkerProcess(database, "tests.jobs.burst", concurrency=2, poll_interval="60s", env=environment, **options)


@pytest.mark.parametrize("statement", TOUCHES)
def test_rows_in_an_open_transaction_hold_up_no_other_job(
    database: str, dsn: str, engine: Engine, file: Path, statement: str
) -> None:
    head = added(engine, HEAD, priority=1)
    with touched(dsn, statement) as end, worker(database, file) as process:
        process.wait_ready()
        others = added(engine, 20)
        until(lambda: set(runs(file)) >= others, timeout=30)
        assert not head & set(runs(file))
        end()
        until(lambda: set(runs(file)) == head | others, timeout=30)
        until(lambda: left(dsn) == 0)
    assert set(runs(file).values()) == {1}


def test_nor_where_all_of_them_cannot_be_looked_at_before_the_first_is_back(
    database: str, dsn: str, engine: Engine, file: Path
) -> None:
    """There are more of them, or the server is slower. Here a touched row is looked at again after 50 ms."""
    head = added(engine, HEAD, priority=1)
    sooner = "from magik_sa.worker import book; book.ROW_BUSY = 0.05; from tests.controls import work; work()"
    with touched(dsn, TOUCHES[0]) as end, worker(database, file, program=("-c", sooner)) as process:
        process.wait_ready()
        others = added(engine, 20)
        until(lambda: set(runs(file)) >= others, timeout=30)
        end()
        until(lambda: set(runs(file)) == head | others, timeout=30)


def test_without_a_look_at_who_has_touched_a_row_every_thread_waits_for_him(
    database: str, dsn: str, engine: Engine, file: Path
) -> None:
    added(engine, HEAD, priority=1)
    with touched(dsn, TOUCHES[0]), worker(database, file, program=control("without_the_touch")) as process:
        process.wait_ready()
        until(lambda: len(runs(file)) == 2)
        others = added(engine, 1)
        never(lambda: others <= set(runs(file)), during=1.0)
        process.kill()


def left(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM magik_jobs").fetchone()
    assert row is not None
    return int(row[0])
