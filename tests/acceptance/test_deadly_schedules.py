"""A schedule that kills its process is left alone after its second start; its neighbours live, and so does its tick."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
from sqlalchemy import Engine
from sqlalchemy.orm import Session as OrmSession

from tests.jobs.deadly_schedules import Neighbour
from tests.tools.effects import Effects
from tests.tools.waiting import never, until
from tests.tools.workers import WorkerProcess, supervised

DEADLY = "tests.jobs.deadly_schedules"
DUE = "UPDATE magik_job_schedules SET next_run_at = now()"


def test_a_deadly_schedule_kills_two_workers_and_rests_while_its_neighbours_live(
    database: str, app: psycopg.Connection[Any], engine: Engine, effects: Effects
) -> None:
    def tried() -> int:
        return sum(row.note == "tried" for row in effects.rows("DeadlyTick"))

    with WorkerProcess(database, DEADLY) as first:  # it writes the rows
        first.wait_ready().terminate()
    app.execute(DUE)
    with OrmSession(engine) as session, session.begin():
        session.add_all(Neighbour() for _ in range(20))
    with supervised(database, DEADLY, count=3) as workers:
        left = "SELECT count(*) FROM magik_job_schedules WHERE next_run_at <= now()"
        rests = "SELECT extract(epoch FROM rests_until - now()) FROM magik_job_schedules WHERE deaths = 2"
        (seconds,) = until(lambda: app.execute(rests).fetchone(), 30, what="it rests")
        assert 50 < seconds <= 60
        until(lambda: len({row.note for row in effects.rows("HealthyTick")}) == 5, 30, what="the healthy have fired")
        until(lambda: len({row.job_id for row in effects.rows("Neighbour")}) == 20, 30, what="the other jobs are done")
        never(lambda: tried() > 2, during=3.0, what="a third start")
        assert app.execute(left).fetchone() == (1,)
        app.execute("CREATE TABLE mended ()")
        app.execute("UPDATE magik_job_schedules SET rests_until = now() WHERE deaths > 0")
        until(lambda: "performed" in {row.note for row in effects.rows("DeadlyTick")}, 30, what="it fires, late")
        assert app.execute(left).fetchone() == (0,)
        notes = Counter(row.note for row in effects.rows("DeadlyTick"))
        assert notes["performed"] == 1
        assert 2 <= notes["tried"] <= 3, "two deaths at most: who is slow to claim what it has noted counts as dead"
        said = "".join(worker.stderr() for worker in workers)
    assert said.count("event=schedule_interrupted schedule=DeadlyTick") == 2
    assert "deaths=2 next_try_s=60" in said


def test_a_worker_that_is_killed_in_the_middle_of_a_tick_does_not_make_it_wait(
    database: str, app: psycopg.Connection[Any], effects: Effects
) -> None:
    slow = {"TICKING": "0", "SLOW": "60", "SLOW_IN": "python"}  # longer than this takes, and the other one not
    with (
        WorkerProcess(database, "tests.jobs.ticking", env=slow) as first,
        WorkerProcess(database, "tests.jobs.ticking", env={**slow, "SLOW": "0.1"}) as second,
    ):
        first.wait_ready()
        second.wait_ready().stop()
        app.execute(DUE)
        running = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'slow'"
        until(lambda: app.execute(running).fetchone() == (1,), what="its on_schedule runs")
        second.cont()
        first.kill()
        until(lambda: effects.count("Slow") == 1, what="the other worker fires it")
        assert "event=schedule_interrupted schedule=Slow" in second.stderr()
    assert app.execute("SELECT tried_at, deaths, rests_until FROM magik_job_schedules").fetchone() == (None, 0, None)
