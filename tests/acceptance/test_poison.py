"""Nothing that a job does to its worker keeps another job from running, or its own outcome from being written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session as OrmSession

from magik_sa import Job
from tests.jobs.poison import KillsItsProcess, PoisonMarker, Raises, Savepoints
from tests.tools.effects import Effects
from tests.tools.noted import UNNOTED
from tests.tools.sessions import ONE_KEY, advisory_locks
from tests.tools.waiting import until
from tests.tools.workers import PROGRAM, WorkerProcess

POISON = "tests.jobs.poison"
UNCAUGHT = {
    "sys_exit": "SystemExit: 3",
    "keyboard_interrupt": "KeyboardInterrupt",
    "generator_exit": "GeneratorExit",
    "syntax_error": "SyntaxError: invalid syntax",
    "recursion_error": "RecursionError: maximum recursion depth exceeded",
    "memory_error": "MemoryError: by hand",
}
UNSTORABLE = {
    "nul": r"RuntimeError: a\x00b",
    "lone_surrogate": r"RuntimeError: \ud800",
    "surrogateescape": r"RuntimeError: caf\udce9",
    "no_text": "Untext: <its text could not be made: ValueError>",
    "huge": "RuntimeError: xxx",
}


@pytest.fixture
def add(engine: Engine) -> Callable[..., None]:
    """Adds jobs in a transaction of their own."""

    def add(*jobs: Job) -> None:
        with OrmSession(engine) as session, session.begin():
            session.add_all(jobs)

    return add


def live(app: psycopg.Connection[Any]) -> int:
    return int((app.execute("SELECT count(*) FROM magik_jobs WHERE expired_at IS NULL").fetchone() or [0])[0])


def dead_letter(app: psycopg.Connection[Any], job: Job) -> tuple[int, str]:
    """How often the job failed, and its last failure."""
    query = "SELECT error_count, last_error FROM magik_jobs WHERE id = %s AND expired_at IS NOT NULL"
    row: tuple[int, str] | None = app.execute(query, (job.id,)).fetchone()
    assert row is not None, "not expired"
    return row


def expect_failures_recorded(
    app: psycopg.Connection[Any],
    worker: WorkerProcess,
    add: Callable[..., None],
    effects: Effects,
    said: dict[str, str],
) -> None:
    """Each fails twice (its tries), each marker between them runs, and the worker ends with 0."""
    poison = [Raises(what=what) for what in said]
    add(*(job for each in poison for job in (each, PoisonMarker())))
    until(lambda: live(app) == 0, 20, what="every job has its outcome")
    for job, text in zip(poison, said.values(), strict=True):
        failures, error = dead_letter(app, job)
        assert error.startswith(text)
        assert "tests/jobs/poison.py" in error, "the traceback"
        assert (failures, len(effects.starts(job.id))) == (2, 2)
        assert len(error.encode()) <= 24_000
    assert effects.count("PoisonMarker") == len(said)
    assert worker.terminate() == 0


def test_what_no_net_catches_is_the_jobs_own_failure(
    app: psycopg.Connection[Any], database: str, dsn: str, add: Callable[..., None], effects: Effects
) -> None:
    """SystemExit, KeyboardInterrupt, GeneratorExit, a lazy import that cannot be parsed, and no stack or memory."""
    with WorkerProcess(database, POISON, concurrency=1) as worker:
        expect_failures_recorded(app, worker.wait_ready(), add, effects, UNCAUGHT)
    assert advisory_locks(dsn)[ONE_KEY] == 0


def test_any_text_of_a_failure_is_recorded(
    app: psycopg.Connection[Any], database: str, dsn: str, add: Callable[..., None], effects: Effects
) -> None:
    r"""NUL, lone surrogates, a __str__ that raises, sixty megabytes; what cannot be stored is shown as \x00."""
    with WorkerProcess(database, POISON, concurrency=1) as worker:
        expect_failures_recorded(app, worker.wait_ready(), add, effects, UNSTORABLE)
    assert advisory_locks(dsn)[ONE_KEY] == 0


@pytest.mark.parametrize(("noted", "uncounted"), [(True, 0), (False, 1)])
def test_a_job_that_kills_its_process_uses_up_its_tries(
    app: psycopg.Connection[Any],
    database: str,
    add: Callable[..., None],
    effects: Effects,
    noted: bool,
    uncounted: int,
) -> None:
    """A supervisor starts the worker again each time; the neighbours lose nothing.

    A job that kills within 50 ms starts once more than its tries say: its first note does not tell yet that it began.
    """
    job, program = KillsItsProcess(noted=noted), PROGRAM if noted else UNNOTED
    add(job, *(PoisonMarker() for _ in range(5)))
    for _ in range(8):
        if live(app):
            run_until_the_end_of_either(app, database, program)
    failures, error = dead_letter(app, job)
    counted = [f"attempt {n}" for n in (*[1] * uncounted, 1, 2, 3)]
    assert [row.note for row in effects.starts(job.id)] == counted
    assert failures == 3
    assert error.startswith("RunError: MAGIK_JOB_INTERRUPTED")
    assert (effects.count("PoisonMarker"), effects.repeats()) == (5, [(job.id, len(counted))])


def run_until_the_end_of_either(app: psycopg.Connection[Any], database: str, program: tuple[str, ...]) -> None:
    """A worker, until it is dead or all jobs have their outcome."""
    with WorkerProcess(database, POISON, concurrency=1, program=program) as worker:
        until(lambda: worker.returncode is not None or not live(app), 20, what="the end of either")


def test_failures_after_a_savepoint_are_recorded(
    app: psycopg.Connection[Any], database: str, add: Callable[..., None], effects: Effects
) -> None:
    jobs = [Savepoints(way=way) for way in ("fail_after_release", "fail_after_rollback_to")]
    add(*jobs)
    with WorkerProcess(database, POISON, concurrency=2):
        until(lambda: live(app) == 0, 20, what="both are expired")
    assert [(dead_letter(app, job)[0], len(effects.starts(job.id))) for job in jobs] == [(2, 2), (2, 2)]


def test_jobs_with_savepoints_end_well(
    app: psycopg.Connection[Any], database: str, add: Callable[..., None], effects: Effects
) -> None:
    jobs = [Savepoints(way=name.removeprefix("_")) for name in vars(Savepoints) if name.startswith("_end_after")]
    add(*jobs)
    with WorkerProcess(database, POISON, concurrency=2):
        until(lambda: live(app) == 0, 20, what="all are done")
    assert len(jobs) == effects.count() == 5
    assert app.execute("SELECT count(*) FROM magik_jobs").fetchone() == (0,)
