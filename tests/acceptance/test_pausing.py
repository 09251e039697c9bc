"""A paused queue beside running workers: seen at once by each of them, whatever it does, and resumed at once.

The workers poll once in a minute: what they do sooner, they were told of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from magik_sa import pause_queue, resume_queue
from tests.controls import control
from tests.controls.without_the_pauses import SQL as WITHOUT_THE_TRIGGER
from tests.jobs.lasting import Lasting
from tests.tools.effects import Effects
from tests.tools.program import answer
from tests.tools.sessions import ONE_KEY, TWO_KEYS, advisory_locks, pids, terminate
from tests.tools.waiting import never, until
from tests.tools.workers import WorkerProcess

LASTING = "tests.jobs.lasting"
Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(database: str) -> Iterator[Start]:
    """Starts a worker that polls once in a minute."""
    with ExitStack() as stack:

        def start(**options: Any) -> WorkerProcess:
            options = {"concurrency": 1, "poll_interval": "60s", **options}
            return stack.enter_context(WorkerProcess(database, LASTING, **options))

        yield start


def add(engine: Engine, n: int = 1, queue: str = "default", seconds: float = 0.0) -> None:
    with Session(engine) as session, session.begin():
        session.add_all([Lasting(seconds=seconds, queue=queue) for _ in range(n)])


def pause(engine: Engine, queue: str = "default") -> None:
    with Session(engine) as session, session.begin():
        assert pause_queue(session, queue, "ada")


def resume(engine: Engine, queue: str = "default") -> datetime:
    """The time right before the commit."""
    with Session(engine) as session, session.begin():
        assert resume_queue(session, queue)
        return now(session)


def now(session: Session) -> datetime:
    moment: datetime = session.connection().exec_driver_sql("SELECT clock_timestamp()").scalar_one()
    return moment


def waiting(dsn: str) -> int:
    """How many queues somebody waits for."""
    return advisory_locks(dsn)[TWO_KEYS]


def waited_for(app: psycopg.Connection[Any]) -> set[str]:
    """Which queues those are. On the way from two flags to one there are others: all are lowered, one by one."""
    query = """
        SELECT name FROM unnest(ARRAY['default', 'slow']) name, pg_locks
         WHERE locktype = 'advisory' AND objsubid = 2 AND objid::bigint = hashtext(name)::bigint & 4294967295"""
    return {name for (name,) in app.execute(query)}


@pytest.mark.parametrize("told", [True, False], ids=["told", "without_the_trigger"])
def test_a_busy_an_idle_and_a_starting_worker_begin_nothing_until_it_is_resumed(
    start: Start, engine: Engine, dsn: str, effects: Effects, told: bool, superuser_dsn: str
) -> None:
    if not told:
        with psycopg.connect(superuser_dsn, autocommit=True) as connection:
            connection.execute(WITHOUT_THE_TRIGGER.encode())
    busy, idle = start(), start()
    busy.wait_ready()
    add(engine, seconds=3)
    until(effects.count, what="one is busy")
    idle.wait_ready()
    until(lambda: waiting(dsn) == 1, what="the other waits")
    starting = start()
    pause(engine)
    add(engine, 10)
    starting.wait_ready()
    until(lambda: effects.finished() == 1, what="what ran goes on to its end")
    until(lambda: len(pids(dsn, "% locker", query="%WITH dead%")) == 3, what="all have looked, and idle")
    never(lambda: effects.count() > 1, 1, what="a job of the paused queue began")
    resumed = resume(engine)
    if told:
        until(lambda: effects.count() == 11, what="all run")
        first = min(row.started for row in effects.rows()[1:])
        print(f"resumed to the first start: {(first - resumed).total_seconds() * 1000:.0f} ms")
        assert (first - resumed).total_seconds() < 1
    else:
        never(lambda: effects.count() > 1, 1.5, what="a job began, though nobody was told")


def test_without_its_word_in_the_claim_the_jobs_of_a_paused_queue_run(
    start: Start, engine: Engine, effects: Effects
) -> None:
    """The control of the test above."""
    with Session(engine) as session, session.begin():
        pause_queue(session, "default", "ada", create=True)
    add(engine, 10)
    start(program=control("heedless")).wait_ready()
    until(effects.count, 5, what="one runs")


def test_what_was_claimed_and_not_begun_begins_within_50_ms_or_is_given_back(
    start: Start, engine: Engine, dsn: str, app: psycopg.Connection[Any], effects: Effects
) -> None:
    """What else the machine does can only add to it, so the best of three rounds counts."""
    start(concurrency=2).wait_ready()
    late: list[float] = []
    while min(late, default=1) > 0.05 and len(late) < 3:
        effects.clear()
        add(engine, 2_000, seconds=0.01)
        until(lambda: effects.count() > 50, every=0.001, what="they run")
        pause(engine)
        [(committed,)] = app.execute("SELECT clock_timestamp()").fetchall()
        until(lambda: advisory_locks(dsn)[ONE_KEY] == 0, what="nothing is claimed any more")
        late.append((effects.rows()[-1].started - committed).total_seconds())
        assert effects.count() < 2_000
        app.execute("DELETE FROM magik_jobs")
        resume(engine)
    print(f"committed to the last start: {', '.join(f'{each * 1000:.0f}' for each in late)} ms")
    assert min(late) <= 0.05
    assert app.execute("SELECT FROM magik_claims").rowcount == 0


def test_a_worker_that_is_killed_while_its_queue_is_paused(
    start: Start, engine: Engine, app: psycopg.Connection[Any], effects: Effects
) -> None:
    """Its job waits as the others do, and is known to have been interrupted when the queue is resumed."""
    failures = "SELECT error_count FROM magik_jobs WHERE job_class = 'Lasting'"
    victim = start().wait_ready()
    add(engine, seconds=60)
    until(lambda: app.execute("SELECT FROM magik_claims WHERE begun").rowcount, what="its note says so")
    start().wait_ready()
    pause(engine)
    victim.kill()
    never(lambda: app.execute(failures).fetchall() != [(0,)], 1, what="somebody has taken it")
    resume(engine)
    until(lambda: app.execute(failures).fetchall() == [(1,)], what="the interruption is counted")


def test_a_pause_outlives_the_locking_connection(start: Start, engine: Engine, dsn: str, effects: Effects) -> None:
    worker = start()
    worker.wait_ready()
    with Session(engine) as session, session.begin():
        pause_queue(session, "default", "ada")
    add(engine, 3)
    locker = f"{worker.app_name} locker"
    before = pids(dsn, locker)
    terminate(dsn, locker)
    until(lambda: pids(dsn, locker) not in ([], before), what="it has connected anew")
    never(effects.count, 1, what="a job of the paused queue began")
    resume(engine)
    until(lambda: effects.count() == 3, 4, what="all run")  # a full walk follows after 5 s


def test_beside_a_paused_queue_the_others_go_on_and_nobody_is_told_of_what_is_added_to_it(
    start: Start, engine: Engine, database: str, dsn: str, app: psycopg.Connection[Any], effects: Effects
) -> None:
    start(queue=["default", "slow"]).wait_ready()
    until(lambda: waited_for(app) == {"default", "slow"}, what="the worker waits for both")
    pause(engine, "slow")
    until(lambda: waited_for(app) == {"default"}, what="the flag of the paused one is down")
    [(oid,)] = app.execute("SELECT 'magik_jobs'::regclass::oid").fetchall()
    app.execute(f"LISTEN magik_{oid}".encode())
    for _ in range(5):
        add(engine, 1, "slow")
        add(engine)
    until(lambda: effects.count() == 5, 4, what="those of the other run")
    until(lambda: app.execute("SELECT FROM magik_jobs WHERE queue = 'default'").rowcount == 0, what="and have ended")
    assert "slow" not in {note.payload for note in app.notifies(timeout=0.5)}
    found = answer(database, "jobs", "status")
    assert found["unserved"] == []
    assert [(queue["name"], queue["ready"], queue["paused_by"]) for queue in found["queues"]] == [
        ("default", 0, None),
        ("slow", 5, "ada"),
    ]
    resume(engine, "slow")
    until(lambda: effects.count() == 10, 4, what="all run")


def test_a_worker_beside_due_jobs_of_a_paused_queue_asks_no_more_than_an_idle_one(
    start: Start, engine: Engine, dsn: str, app: psycopg.Connection[Any], superuser_dsn: str
) -> None:
    with psycopg.connect(superuser_dsn, autocommit=True) as superuser:
        superuser.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        asked = """SELECT coalesce(sum(calls), 0)::int FROM pg_stat_statements
                    WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
                      AND query NOT LIKE '%%pg_stat_statements%%' AND query NOT LIKE '%%pg_sleep%%'
                      AND query NOT LIKE '%%WITH dead%%'"""  # every 0.4 s, if nothing keeps it from it

        def in_three_seconds() -> int:
            [(before,)] = superuser.execute(asked.encode()).fetchall()
            superuser.execute("SELECT pg_sleep(3)")
            [(after,)] = superuser.execute(asked.encode()).fetchall()
            return int(after - before)

        worker = start().wait_ready()
        until(lambda: waiting(dsn) == 1, what="the worker waits")
        idle = in_three_seconds()
        pause(engine)
        add(engine, 1_000)
        until(lambda: waiting(dsn) == 0, what="it has heard")
        beside = in_three_seconds()
        worker.expect_alive()
    print(f"statements in 3 s: {idle} idle, {beside} beside 1,000 due jobs of a paused queue")
    assert beside <= idle + 3
