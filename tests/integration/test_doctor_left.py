"""Jobs that nobody runs, or that a transaction keeps from ending: named, mended, and gone."""

from __future__ import annotations

import re
from contextlib import ExitStack, closing
from datetime import timedelta

import psycopg
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from magik_sa.doctor import Finding, Severity
from magik_sa.names import find
from magik_sa.wake import register
from tests.jobs.lasting import Lasting
from tests.tools.effects import Effects
from tests.tools.examined import finding, run, warned
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

INSTANT = timedelta(milliseconds=1)
TICKING = "tests.jobs.ticking"
LASTING = "tests.jobs.lasting"


def count(dsn: str, condition: str) -> int:
    with psycopg.connect(dsn) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {condition}".encode()).fetchall()[0][0])


def test_who_locks_a_job_and_a_schedule_is_named_while_all_others_run(
    database: str, dsn: str, engine: Engine, effects: Effects
) -> None:
    with ExitStack() as stack:
        env = {"TICKING": "2"}
        worker = stack.enter_context(WorkerProcess(database, TICKING, LASTING, env=env, concurrency=2))
        worker.wait_ready()
        until(lambda: count(dsn, "magik_job_schedules") == 2, what="both schedules are there")
        worker.freeze()  # else it might be at what is due before somebody has locked it
        with Session(engine) as session, session.begin():
            session.add(Lasting())
        run(dsn, "UPDATE magik_job_schedules SET next_run_at = now() WHERE name LIKE '%n0'")
        locking = stack.enter_context(closing(psycopg.connect(dsn, application_name="import script")))
        locking.execute("SELECT FROM magik_jobs FOR UPDATE")
        locking.execute("SELECT FROM magik_job_schedules WHERE name LIKE '%n0' FOR UPDATE")
        worker.cont()
        with Session(engine) as session, session.begin():
            session.add_all(Lasting() for _ in range(20))
        run(dsn, "UPDATE magik_job_schedules SET next_run_at = now() WHERE name LIKE '%n1'")
        until(lambda: effects.finished("Lasting") >= 20 and effects.count("Ticking") == 1, what="all others have run")
        until(lambda: count(dsn, "magik_jobs") == 1, what="all others have ended")
        found = until(lambda: named(database, locking.info.backend_pid))
        assert {each["table"] for each in found.measured["locking"]} == {"magik_jobs", "magik_job_schedules"}
        assert "(import script, " in found.said
        ((client,),) = locking.execute("SELECT host(inet_client_addr())").fetchall()
        assert {each["client"] for each in found.measured["locking"]} == {client}
        assert (f", from {client})" in found.said) == (client is not None)
        assert [row.note for row in effects.rows("Ticking")] == ["1"], "who has locked it keeps the other from its tick"
        run(dsn, *found.sql)
        until(lambda: effects.count("Ticking") == 2 and count(dsn, "magik_jobs") == 0, what="what was locked has run")
        assert finding(database, "locked_rows").severity is Severity.OK
        assert worker.terminate() == 0


def named(database: str, pid: int) -> Finding | None:
    """Once it is this process that has locked rows, in both tables, and no other."""
    found = finding(database, "locked_rows", blocked=INSTANT)
    return found if [each["pid"] for each in found.measured["locking"]] == [pid, pid] else None


def test_who_only_adds_jobs_has_locked_none(database: str, dsn: str) -> None:
    with psycopg.connect(dsn) as adding:
        adding.execute("INSERT INTO magik_jobs (job_class) VALUES ('Any')")
        assert finding(database, "locked_rows", blocked=INSTANT).severity is Severity.OK


def test_jobs_without_a_worker_are_named_until_one_works_their_queue(database: str, dsn: str, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.add_all(Lasting(queue="mail") for _ in range(3))
    assert finding(database, "unserved").severity is Severity.OK, "it is early yet"
    run(dsn, "UPDATE magik_jobs SET run_at = now() - interval '10 min'")
    with WorkerProcess(database, LASTING, queue=["default"]) as other:
        other.wait_ready()
        found = finding(database, "unserved")
        assert (found.severity, found.measured["unserved"][0]["ready"]) == (Severity.WARNING, 3)
        assert "no live worker works that queue" in found.said
        assert "--queue mail " in found.remedy
    with WorkerProcess(database, LASTING, queue=["mail"]) as worker:
        worker.wait_ready()
        until(lambda: finding(database, "unserved").severity is Severity.OK)


def test_a_class_that_no_worker_knows_is_named(database: str, dsn: str) -> None:
    run(dsn, "INSERT INTO magik_jobs (job_class, run_at) VALUES ('Unheard', now() - interval '10 min')")
    with WorkerProcess(database, LASTING) as worker:
        worker.wait_ready()
        found = until(lambda: passed_over(database))
    assert "Unheard of the queue default" in found.said


def passed_over(database: str) -> Finding | None:
    found = finding(database, "unserved")
    return found if "do not know the class" in found.said else None


def test_beside_busy_workers_it_is_not_said_that_nobody_waits(database: str, dsn: str) -> None:
    run(dsn, "INSERT INTO magik_jobs (job_class, run_at) VALUES ('Unheard', now() - interval '10 min')")
    with psycopg.connect(dsn, autocommit=True, application_name="w locker") as busy:
        register(busy, find(busy, None), "host:1", ["default"])
        found = finding(database, "unserved")
    assert found.severity is Severity.NOTE
    assert re.match(r"queue default: 1 job waits, the oldest for 10\.\d min; its workers are busy", found.said)
    assert found.measured["waiting"][0]["ready"] == 1


def test_a_pause_that_jobs_wait_for_is_noted_until_it_is_over(database: str, dsn: str) -> None:
    run(dsn, "INSERT INTO magik_queues (name, paused_by) VALUES ('o''clock', 'ada'), ('empty', 'ada')")
    run(dsn, "INSERT INTO magik_jobs (job_class, queue) VALUES ('Any', 'o''clock')")
    early = finding(database, "paused_queues")
    assert early.severity is Severity.OK, "nobody has waited for long"
    assert re.fullmatch(r"queue o'clock, paused by ada: 1 job waits, the oldest for \d+\.\d s", early.said)
    run(dsn, "UPDATE magik_jobs SET run_at = now() - interval '10 min'")
    found = finding(database, "paused_queues")
    assert (found.severity, found.measured["paused"][0]["name"]) == (Severity.NOTE, "o'clock")
    assert re.match(r"queue o'clock, paused by ada: 1 jobs are due, the first for 10\.\d min", found.said)
    assert found.remedy.endswith(": magik queues resume 'o'\"'\"'clock'")
    assert finding(database, "unserved").severity is Severity.OK, "that is meant"
    run(dsn, *found.sql)
    assert finding(database, "paused_queues").severity is Severity.OK


def test_many_dead_letters_are_named_until_they_are_gone(database: str, dsn: str) -> None:
    dead = "INSERT INTO magik_jobs (job_class, expired_at) SELECT 'Any', now() - interval '100 d'"
    run(dsn, f"{dead} FROM generate_series(1, 999)")
    assert finding(database, "dead_letters").severity is Severity.OK
    run(dsn, dead)
    found = warned(database, "dead_letters")
    assert found
    assert found.measured == {"letters": 1_000, "older_than_90_days": 1_000, "most": "Any"}
    run(dsn, *found.sql)
    assert finding(database, "dead_letters").measured["letters"] == 0
