"""A failed job comes back: in its time, whatever its number, and never in its own way."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
from sqlalchemy import Engine
from sqlalchemy.orm import Session as OrmSession

from tests.jobs.retrying import Exponential, KeyedPatience, KeyedRetry
from tests.tools.effects import Effects
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

RETRYING = "tests.jobs.retrying"
OFTEN = [30, 31, 62, 63, 1_023, 1_024, 30_000]  # where powers of two leave an integer, a bigint, a float


def one(app: psycopg.Connection[Any], statement: str) -> Any:
    row = app.execute(statement.encode()).fetchone()
    return row and row[0]


def test_a_keyed_job_that_becomes_due_is_no_repeat_of_itself(
    app: psycopg.Connection[Any], database: str, engine: Engine, effects: Effects
) -> None:
    """One that fails twice, one for later, and twenty whose next try is due in the same second; on two workers."""
    pile = [KeyedRetry(number=number, failures=1) for number in range(20)]
    twice, later = KeyedRetry(number=100, failures=2), KeyedRetry(number=101, delay="1500ms")
    with WorkerProcess(database, RETRYING) as one_worker, WorkerProcess(database, RETRYING) as another:
        one_worker.wait_ready()
        another.wait_ready()
        with OrmSession(engine) as session, session.begin():
            session.add_all([*pile, twice, later, KeyedPatience(number=100)])
        until(lambda: one(app, "SELECT error_count FROM magik_jobs WHERE job_class = 'KeyedPatience'"), what="it waits")
        with OrmSession(engine) as session, session.begin():
            session.add(again := KeyedPatience(number=100))
            session.flush()
            assert again.is_repeat, "a job that waits for its next try is live"
        ended = "SELECT count(*) FROM magik_jobs WHERE finished_at IS NOT NULL"
        until(lambda: one(app, ended) == 22, 30, what="all ended")
    assert one(app, "SELECT count(*) FROM magik_jobs") == 23
    assert one(app, "SELECT count(*) FROM magik_jobs WHERE expired_at IS NOT NULL") == 0
    starts = {job: [effect.note for effect in effects.starts(job.id)] for job in (*pile, twice, later)}
    assert starts == {job: ["failed 0", "failed 1"] for job in pile} | {
        twice: ["failed 0", "failed 1", "failed 2"],
        later: ["failed 0"],
    }


def test_the_wait_after_any_number_of_failures_is_the_published_one(
    app: psycopg.Connection[Any], database: str
) -> None:
    longest: dict[str, Callable[[int], timedelta]] = {
        "Exponential": lambda _: timedelta(hours=1),
        "Linear": lambda tries: min(timedelta(seconds=tries), timedelta(minutes=10)),
        "Computed": lambda _: timedelta(minutes=30),
    }
    share = {"Exponential": 0.1, "Linear": 0.5, "Computed": 0.1}  # the part of it that is left to chance
    for name in longest:
        for before in OFTEN:
            app.execute("INSERT INTO magik_jobs (job_class, error_count) VALUES (%s, %s)", (name, before))
    started: datetime = one(app, "SELECT clock_timestamp()")
    with WorkerProcess(database, RETRYING) as worker:
        until(lambda: one(app, "SELECT count(*) FROM magik_jobs WHERE run_at <= now()") == 0, 20, what="all failed")
        assert "unrecorded" not in worker.stderr()
    ended: datetime = one(app, "SELECT clock_timestamp()")
    rows = app.execute("SELECT job_class, error_count, run_at, failed_at, last_error, expired_at FROM magik_jobs")
    found = {(row[0], row[1]): row[2:] for row in rows}
    assert found.keys() == {(name, before + 1) for name in longest for before in OFTEN}
    for (name, tries), (run_at, failed_at, last_error, expired_at) in found.items():
        ceiling = longest[name](tries)
        assert ceiling * (1 - share[name]) <= run_at - failed_at <= ceiling, (name, tries)
        assert started <= failed_at <= ended, "by the database's clock"
        assert (last_error.split("\n")[0], expired_at) == ("ValueError", None)


def test_a_count_of_failures_that_cannot_grow_does_not_keep_the_outcome_from_being_written(
    app: psycopg.Connection[Any], database: str, engine: Engine
) -> None:
    with OrmSession(engine) as session, session.begin():
        session.add(Exponential())
    app.execute("UPDATE magik_jobs SET error_count = 2147483647")
    with WorkerProcess(database, RETRYING):
        until(lambda: one(app, "SELECT expired_at FROM magik_jobs"), 20, what="it is a dead letter")
    assert app.execute("SELECT error_count, left(last_error, 10) FROM magik_jobs").fetchone() == (
        2147483647,
        "ValueError",
    )


def test_a_row_from_before_an_argument_was_added_fails_by_the_rule_and_loses_nothing(
    app: psycopg.Connection[Any], database: str, effects: Effects
) -> None:
    app.execute("INSERT INTO magik_jobs (job_class) VALUES ('Grown')")
    with WorkerProcess(database, RETRYING):
        until(lambda: one(app, "SELECT last_error LIKE '%then raised%' FROM magik_jobs"), 20, what="both are recorded")
    query = "SELECT error_count, last_error, expired_at = failed_at FROM magik_jobs"
    tries, told, at_once = app.execute(query).fetchone() or (0, "", False)
    first, second = told.split("on_failure then raised ")
    assert (tries, at_once) == (2, True)
    assert first.startswith("EnqueueError: MAGIK_ARGS_INVALID: added: is missing")
    assert second.startswith("EnqueueError: MAGIK_ARGS_INVALID: added: is missing")
    assert [effect.note for effect in effects.rows()] == ["on_failure"]
