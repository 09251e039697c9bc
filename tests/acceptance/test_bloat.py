"""A long transaction keeps what is deleted: claims do not slow down by it, and doctor names it before it hurts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import sessionmaker

from magik_sa import bulk_enqueue
from tests.integration.test_claim_cost import FEW, Meter
from tests.jobs import kept
from tests.tools.program import answer, magik
from tests.tools.rows import one, rows
from tests.tools.sessions import pids
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess, dsn_of

# Those that a worker runs; what makes the table 30,000 jobs old is deleted in one statement, as a job's end deletes.
JOBS = 30_000 if os.environ.get("MAGIK_CHAOS") == "long" else 1_500
DELETED = 30_000 - JOBS


@pytest.fixture
def meter(dsn: str) -> Iterator[Meter]:
    meter = Meter(dsn)
    yield meter
    meter.connection.close()


def five_due(app: psycopg.Connection[Any]) -> None:
    app.execute("INSERT INTO magik_jobs (job_class) SELECT 'Known' FROM generate_series(1, 5)")


@pytest.mark.timeout(300)
def test_under_a_long_transaction_claims_cost_what_they_cost_and_it_is_named(
    database: str, dsn: str, app: psycopg.Connection[Any], meter: Meter, Session: sessionmaker[OrmSession]
) -> None:
    with closing(psycopg.connect(dsn, application_name="nightly report")) as report:
        report.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        report.execute("SELECT count(*) FROM magik_jobs")
        _work(database, app, Session)
        passed = f"SELECT now() - interval '1 s' > '{one(app, 'SELECT now()')}'"
        until(lambda: one(app, passed), 3, what="marks may pass all of that")
        five_due(app)
        meter.blocks_of_a_claim()  # walks past what is dead, once
        assert meter.blocks_of_a_claim() < FEW
        app.execute("SELECT pg_stat_force_next_flush()")
        app.execute("DELETE FROM magik_jobs")
        found = answer(database, "doctor", "--oldest-transaction", "1s", code=1)
        told = {each["name"]: each for each in found["findings"]}
        oldest, dead = told["oldest_transaction"], told["dead_tuples"]
        assert (oldest["severity"], dead["severity"]) == ("warning", "warning")
        assert oldest["measured"]["pid"] == report.info.backend_pid
        assert oldest["measured"]["application"] == "nightly report"
        assert oldest["measured"]["seconds"] > 1
        assert dead["measured"]["dead"] >= 30_000
        assert dead["measured"]["share"] > 0.99
        lines = magik(database, "doctor", "--oldest-transaction", "1s", code=1).splitlines()
        assert lines[0].startswith("warning   "), "before what is a note or as it should be"
        assert [line for line in lines if line.startswith("warning   dead_tuples: ")]
    gone = f"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {oldest['measured']['pid']}"
    until(lambda: one(app, gone), 5, what="the report's session has ended")
    app.execute("VACUUM magik_jobs")
    assert answer(database, "doctor")["worst"] == "note"


def _work(database: str, app: psycopg.Connection[Any], Session: sessionmaker[OrmSession]) -> None:
    """Jobs come and go; no finished row is kept."""
    app.execute(f"INSERT INTO magik_jobs (job_class) SELECT 'Known' FROM generate_series(1, {DELETED})".encode())
    app.execute("DELETE FROM magik_jobs")
    with Session.begin() as session:
        bulk_enqueue(session, (kept.Fleeting() for _ in range(JOBS)))
    with WorkerProcess(database, "tests.jobs.kept") as worker:
        worker.wait_ready()
        until(lambda: not rows(app), 120)
        assert worker.terminate() == 0
    until(lambda: not pids(dsn_of(database), f"{worker.app_name} %"), what="its sessions have told the statistics")
    assert one(app, "SELECT count(*) FROM magik_jobs") == 0
