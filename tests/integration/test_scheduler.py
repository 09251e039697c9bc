"""The scheduler's thread, beside which nothing of a worker runs: what it asks of the database, and what it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import scoped_session, sessionmaker

from magik_sa import Job, Schedule, tries
from magik_sa.job_session import for_runs
from magik_sa.timeout import Limits
from magik_sa.timetable import Entry, timetable
from magik_sa.worker.scheduler import Scheduler
from tests.tools.waiting import never, until


class Many(Job, policy="system", name="scheduler.Many"):
    """More schedules than are tried between two looks."""

    schedule = tuple(Schedule(every="1h", name=f"n{n}") for n in range(25))

    def perform(self, session: OrmSession) -> None:
        """Does nothing."""


class Loosens(Job, policy="system", name="scheduler.Loosens"):
    """Its on_schedule leaves its connection in another state than it was."""

    schedule = Schedule(every="1h")

    def perform(self, session: OrmSession) -> None:
        """Does nothing."""

    @classmethod
    def on_schedule(cls, session: OrmSession) -> Iterator[Job]:
        session.rollback()
        session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        session.rollback()
        return iter(())


class Fails(Job, policy="system", name="scheduler.Fails"):
    """Its on_schedule writes and then fails."""

    schedule = Schedule(every="1h")

    def perform(self, session: OrmSession) -> None:
        """Does nothing."""

    @classmethod
    def on_schedule(cls, session: OrmSession) -> Iterator[Job]:
        yield cls()
        session.flush()
        session.execute(text("UPDATE pg_temp.nothing SET there = true"))


Start = Callable[..., Scheduler]


@pytest.fixture
def start(engine: Engine) -> Iterator[Start]:
    """Starts a scheduler of these classes on an engine of the test's database."""
    with ExitStack() as stack:

        def start(*classes: type[Job]) -> Scheduler:
            known = {cls.__magik__.name: cls for cls in classes}
            sessions = for_runs(scoped_session(sessionmaker(engine)))
            scheduler = Scheduler(known, timetable(known), engine, sessions, Limits())
            stack.callback(scheduler.leave)
            stack.callback(scheduler.stop)
            scheduler.write()
            scheduler.start()
            return scheduler

        yield start


def do(engine: Engine, statement: str, **values: Any) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement), values)


def one(engine: Engine, statement: str) -> Any:
    with engine.connect() as connection:
        return connection.scalar(text(statement))


def test_many_ticks_that_somebody_else_holds_are_tried_again_at_the_next_look_and_not_before(
    engine: Engine, start: Start
) -> None:
    begun: list[object] = []
    count = begun.append
    start(Many)
    with engine.connect() as holder:
        holder.execute(text("SELECT FROM magik_job_schedules FOR KEY SHARE"))  # they can be moved, and not be claimed
        do(engine, "UPDATE magik_job_schedules SET next_run_at = now()")
        began = time.monotonic()
        event.listen(engine, "begin", count)
        until(lambda: len(begun) > 20, what="they are tried")  # a look and twenty tries, once in a second
        never(lambda: len(begun) > 25 * (time.monotonic() - began + 2), during=2.0, what="a hot loop")
        event.remove(engine, "begin", count)
    due = "SELECT count(*) FROM magik_job_schedules WHERE next_run_at <= now()"
    until(lambda: one(engine, due) == 0, what="they fire once they are let go")


def test_a_schedule_that_changes_its_connection_changes_it_for_no_other(
    engine: Engine, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """In AUTOCOMMIT the claim of one that fails would stay, with half of its jobs."""
    caplog.set_level("INFO", "magik_sa")
    start(Loosens, Fails)
    for name in ("scheduler.Loosens", "scheduler.Fails"):
        do(engine, "UPDATE magik_job_schedules SET next_run_at = now() WHERE name = :name", name=name)
        until(lambda name=name: f"schedule_failed schedule={name}" in caplog.text, what="it has failed")  # type: ignore[misc]
    assert one(engine, "SELECT count(*) FROM magik_jobs") == 0
    assert one(engine, "SELECT count(*) FROM magik_job_schedules WHERE next_run_at <= now()") == 2
    assert "scheduler_interrupted" not in caplog.text


def test_a_note_that_could_not_be_taken_back_is_at_the_next_turn(
    engine: Engine, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be counted as the death of a worker that lives."""
    kept: list[str] = []

    def keeps(entry: Entry, note: str, connection: Connection) -> bool:
        if not kept:
            kept.append(note)
            return False
        return end(entry, note, connection)

    end = tries.end
    monkeypatch.setattr(tries, "end", keeps)
    monkeypatch.setattr("magik_sa.worker.scheduler.fire", lambda *_: None)  # as where the claim walks past the row
    start(Fails)
    do(engine, "UPDATE magik_job_schedules SET next_run_at = now()")
    until(lambda: kept, what="it could not be taken back")
    monkeypatch.undo()
    do(engine, "UPDATE magik_job_schedules SET paused_at = now()")
    until(lambda: one(engine, "SELECT tried_at IS NULL FROM magik_job_schedules"), what="it is, later")
