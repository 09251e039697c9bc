"""A job that kills its process uses up its tries and ends as a dead letter; its neighbours lose none of theirs."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session as OrmSession

from magik_sa import bulk_enqueue
from tests.jobs.deadly import Deadly, DeadlyAtOnce, DeadlyOnce, Frail, Healthy, Swift
from tests.tools.effects import Effects
from tests.tools.noted import UNNOTED
from tests.tools.sessions import ONE_KEY, advisory_locks
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess, supervised


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
    with psycopg.connect(dsn, autocommit=True) as app, supervised(database, "tests.jobs.deadly", count=3):

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
    told: dict[str, Any] = {"count": 1, "program": UNNOTED}
    with psycopg.connect(dsn, autocommit=True) as app, supervised(database, "tests.jobs.deadly", **told):

        def left() -> list[tuple[Any, ...]]:
            return app.execute("SELECT job_class, expired_at IS NOT NULL FROM magik_jobs").fetchall()

        until(lambda: left() == [("DeadlyAtOnce", True)], 60, every=0.05, what="the frail are done, the deadly is dead")
    assert effects.count("DeadlyAtOnce") == 2  # once more than its tries say: nobody saw the first one begin
    assert len({row.job_id for row in effects.rows("Frail") if row.ended}) == 20


@pytest.mark.usefixtures("effects")
def test_what_waited_for_a_thread_loses_no_try(database: str, dsn: str, engine: Engine) -> None:
    """Jobs that end at once are claimed ahead, as many as soon will start."""
    with psycopg.connect(dsn, autocommit=True) as app:

        def left() -> list[tuple[Any, ...]]:
            return app.execute("SELECT job_class, expired_at IS NOT NULL FROM magik_jobs").fetchall()

        def killed() -> int:
            """A worker in the middle of them; how many that it had in its hands had not begun, as far as is known."""
            app.execute("DELETE FROM magik_jobs WHERE job_class = 'DeadlyAtOnce'")
            with OrmSession(engine) as session, session.begin():
                bulk_enqueue(session, [Swift() for _ in range(6_000 - len(left()))])
            some = len(left()) - 200
            with WorkerProcess(database, "tests.jobs.deadly", concurrency=3, program=UNNOTED) as worker:
                until(lambda: len(left()) < some, 60, what="it knows how short they are")
                with OrmSession(engine) as session, session.begin():
                    session.add(DeadlyAtOnce())
                assert worker.wait() == 1
            unbegun = app.execute("SELECT count(*) FROM magik_claims WHERE NOT begun").fetchone() or (0,)
            return int(unbegun[0])

        assert any(killed() > 3 for _ in range(8)), "more than ran"  # fewer where the machine had no time for them
        with supervised(database, "tests.jobs.deadly", count=1, program=UNNOTED):
            until(lambda: left() == [("DeadlyAtOnce", True)], 60, every=0.05, what="the swift are done")
