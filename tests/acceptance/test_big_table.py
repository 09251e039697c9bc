"""Half a million rows that are done for, beside a worker at work: status and doctor are as quick, and as right."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.orm import Session

from magik_sa.asking import LONGEST, SETTINGS, Asking
from magik_sa.doctor import Limits, Severity, Subject, examine
from magik_sa.status import status
from magik_sa.url import conninfo
from tests.jobs.lasting import Lasting
from tests.tools.effects import Effects
from tests.tools.program import answer
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

MOST = 2.0  # seconds for all questions of one command
ROWS = """
INSERT INTO magik_jobs (job_class, queue, run_at, error_count, finished_at, expired_at)
SELECT 'Lasting', CASE WHEN n % 2 = 0 THEN 'default' ELSE 'old' END, now() - interval '2 d', 0,
       CASE WHEN n % 10 > 0 THEN now() - interval '1 d' END, CASE WHEN n % 10 = 0 THEN now() - interval '1 d' END
  FROM generate_series(1, 500000) n"""
DUE = """
INSERT INTO magik_jobs (job_class, priority, run_at, error_count)
SELECT 'Lasting', 200, now() - n * interval '1 s', CASE WHEN n % 20 = 0 THEN 1 ELSE 0 END
  FROM generate_series(1, 2000) n"""


def test_status_and_doctor_answer_at_once_beside_half_a_million_dead_rows(
    database: str, dsn: str, engine: Engine, effects: Effects
) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("SET magik_sa.wake = off")
        connection.execute(ROWS)
        connection.execute(DUE)
    with Session(engine) as session, session.begin():
        session.add_all(Lasting(seconds=100) for _ in range(8))
    with ExitStack() as stack:
        worker = stack.enter_context(WorkerProcess(database, "tests.jobs.lasting", concurrency=8))
        worker.wait_ready()
        until(lambda: effects.count() == 8, 30, what="eight jobs run")
        assert_figures(answer(database, "jobs", "status"))
        looking = stack.enter_context(engine.connect())
        sent = recorded(looking)
        found, took = timed(lambda: status(Asking(looking)))
        assert took < MOST
        assert found.unknown == {}
        findings, took = timed(lambda: examine(Subject(Asking(looking, MOST), conninfo(database), Limits())))
        assert took < MOST
        assert [each for each in findings if each.severity is Severity.UNKNOWN] == []
        (letters,) = [each for each in findings if each.name == "dead_letters"]
        assert letters.measured["letters"] == 50_000
        assert_bounded(sent)
        assert_indexed(looking, sent)
        assert worker.returncode is None


def assert_figures(found: Any) -> None:
    """Right, to the job."""
    (default,) = found["queues"]  # another has nothing but finished jobs
    names = ("ready", "running", "scheduled", "errored", "expired", "workers", "at_least")
    assert [default[name] for name in names] == [2_000, 8, 0, 100, 50_000, 1, []]
    assert 2_000 <= default["oldest_queued_seconds"] < 2_200


def timed(ask: Any) -> tuple[Any, float]:
    start = time.monotonic()
    return ask(), time.monotonic() - start


Sent = list[tuple[str, Any]]


def recorded(connection: Connection) -> Sent:
    """Every statement from now on, with its values."""
    sent: Sent = []

    def note(_: Any, __: Any, statement: str, values: Any, *___: Any) -> None:
        sent.append((statement, values))

    event.listen(connection, "before_cursor_execute", note)
    return sent


def assert_bounded(sent: Sent) -> None:
    """Before each question its time is set."""
    assert len(sent) > 20
    for (before, values), (question, _) in zip(sent[::2], sent[1::2], strict=True):
        assert "set_config('statement_timeout'" in before
        assert "set_config('statement_timeout'" not in question
        assert int(values["longest"].removesuffix("ms")) <= LONGEST * 1000 + 1


def assert_indexed(connection: Connection, sent: Sent) -> None:
    """No question reads the job table from end to end, and the live rows come from the index that has no others."""
    used: set[str] = set()
    for question, values in [each for each in sent[1::2] if "magik_jobs " in each[0]]:
        connection.rollback()
        connection.execute(text(SETTINGS), {"longest": "2s", "patience": "1s"})
        explained = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {question}", values).scalar()
        for node in nodes((explained if isinstance(explained, list) else json.loads(str(explained)))[0]["Plan"]):
            assert (node["Node Type"], node.get("Relation Name")) != ("Seq Scan", "magik_jobs"), question
            used.add(node.get("Index Name", ""))
    connection.rollback()
    assert {each for each in used if each.startswith("magik_jobs")} == {
        *("magik_jobs_claim", "magik_jobs_expired", "magik_jobs_pkey")
    }


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A plan and all below it."""
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)
