"""A job that kills its process uses up its tries and ends as a dead letter; its neighbours lose none of theirs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session as OrmSession

from tests.jobs.deadly import Deadly, DeadlyAtOnce, DeadlyOnce, Frail, Healthy
from tests.tools.effects import Effects
from tests.tools.sessions import ONE_KEY, advisory_locks
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess


@contextmanager
def supervised(database: str, count: int) -> Iterator[None]:
    """Workers that are started again whenever they end, as a supervisor does."""
    over = threading.Event()

    def keep_one_running() -> None:
        while not over.is_set():
            with WorkerProcess(database, "tests.jobs.deadly", concurrency=10) as worker:
                while worker.returncode is None and not over.wait(0.02):
                    pass

    threads = [threading.Thread(target=keep_one_running) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    ("poison", "starts"),
    [
        (Deadly(how="exit"), 3),
        (Deadly(how="segfault"), 3),
        (Deadly(how="kill"), 3),
        (Deadly(how="memory"), 3),
        (DeadlyOnce(how="kill"), 1),
    ],
    ids=lambda value: getattr(value, "how", None),
)
def test_a_deadly_job_among_fifty_healthy_ones(
    database: str, dsn: str, engine: Engine, effects: Effects, poison: Deadly, starts: int
) -> None:
    with OrmSession(engine) as session, session.begin():
        session.add_all([type(poison)(how=poison.how), *(Healthy() for _ in range(50))])
    with psycopg.connect(dsn, autocommit=True) as app, supervised(database, 3):

        def left() -> list[tuple[Any, ...]]:
            return app.execute("SELECT job_class, expired_at IS NOT NULL FROM magik_jobs").fetchall()

        name = type(poison).__name__
        until(lambda: left() == [(name, True)], 60, every=0.05, what="the healthy are done, the deadly is dead")
        row = app.execute("SELECT error_count, left(last_error, 31) FROM magik_jobs").fetchone()
        assert row == (starts, "RunError: MAGIK_JOB_INTERRUPTED")
    assert effects.count(name) == starts
    done = {row.job_id for row in effects.rows("Healthy") if row.ended}
    assert len(done) == 50
    until(lambda: advisory_locks(dsn)[ONE_KEY] == 0, what="no job is locked")


def test_what_had_not_begun_loses_no_try(database: str, dsn: str, engine: Engine, effects: Effects) -> None:
    """Claimed together with it, killed together with it, and not a single try to lose."""
    with OrmSession(engine) as session, session.begin():
        session.add_all([DeadlyAtOnce(), *(Frail() for _ in range(20))])
    with psycopg.connect(dsn, autocommit=True) as app, supervised(database, 1):

        def left() -> list[tuple[Any, ...]]:
            return app.execute("SELECT job_class, expired_at IS NOT NULL FROM magik_jobs").fetchall()

        until(lambda: left() == [("DeadlyAtOnce", True)], 60, every=0.05, what="the frail are done, the deadly is dead")
    assert effects.count("DeadlyAtOnce") == 2  # once more than its tries say: nobody saw the first one begin
    assert len({row.job_id for row in effects.rows("Frail") if row.ended}) == 20
