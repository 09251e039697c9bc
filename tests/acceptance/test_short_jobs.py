"""Short jobs are left to one thread, and what lasts keeps none of the others from working."""

from __future__ import annotations

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from magik_sa import bulk_enqueue
from tests.jobs.brief import Brief
from tests.jobs.lasting import Lasting
from tests.tools.effects import Effects
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

SHORT, THREADS = 3_000, 4


def test_jobs_that_last_run_together_after_thousands_that_did_not(
    engine: Engine, database: str, effects: Effects
) -> None:
    """They stand behind them in the queue, so that one thread alone is at work when they come."""
    with Session(engine) as session, session.begin():
        bulk_enqueue(session, [Brief() for _ in range(SHORT)])
        bulk_enqueue(session, [Lasting(seconds=60) for _ in range(THREADS)])
    with WorkerProcess(database, "tests.jobs.brief", "tests.jobs.lasting", concurrency=THREADS) as worker:
        until(lambda: effects.count() == THREADS, 30, what="all of them run")
        assert len({row.thread for row in effects.rows()}) == THREADS
        assert worker.returncode is None
