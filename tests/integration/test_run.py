"""One job in this thread, from its claim to each of its ends."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import sessionmaker

from magik_sa import context, fence
from magik_sa.one_exchange import OneExchange
from magik_sa.outcome import Outcome
from tests.jobs import endings
from tests.tools.bench import Bench, add, execute, notes, rows

Session = sessionmaker[OrmSession]


@pytest.fixture(params=["with its commit", "by itself"])
def bench(request: pytest.FixtureRequest, dsn: str, engine: Engine) -> Iterator[Bench]:
    """The last statement of a run goes to the server with its commit, or by itself: nobody can tell."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE notes (what text)"))
    with engine.connect() as connection:
        bench = Bench(dsn, connection, OneExchange(engine) if request.param == "with its commit" else None)
        yield bench
        bench.locking.close()


def test_finished_is_gone_with_what_it_wrote(bench: Bench, engine: Engine, Session: Session) -> None:
    add(Session, endings.Good())
    assert bench.next() is Outcome.FINISHED
    assert (notes(engine), rows(engine)) == (["good"], [])


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE magik_jobs SET version = version + 1",
        "UPDATE magik_jobs SET run_at = now() + interval '1 h', version = version + 1",
        "DELETE FROM magik_jobs",
    ],
)
def test_whoever_lost_its_row_writes_nothing(bench: Bench, engine: Engine, Session: Session, change: str) -> None:
    add(Session, endings.Good())
    assert bench.next(execute(engine, change)) is Outcome.SUPERSEDED
    assert notes(engine) == []


def test_cancelled_while_it_runs_a_job_that_then_fails_stays_cancelled(
    bench: Bench, engine: Engine, Session: Session
) -> None:
    """No retry, no dead letter, nothing written."""
    add(Session, endings.Broken())
    assert bench.next(execute(engine, "DELETE FROM magik_jobs")) is Outcome.SUPERSEDED
    assert (notes(engine), rows(engine)) == ([], [])


NEWER = "UPDATE magik_jobs SET version = version + 1"


def test_a_version_that_is_loaded_later_is_somebody_elses(bench: Bench, engine: Engine, Session: Session) -> None:
    """A rollback makes the ORM load the row again: the run must not take over the version that it finds there."""
    add(Session, endings.Reloading())
    assert bench.next(execute(engine, NEWER)) is Outcome.SUPERSEDED
    assert notes(engine) == []
    assert [row.version for row in rows(engine)] == [2]


def test_taking_a_loaded_version_over_lets_two_runs_write(
    bench: Bench, engine: Engine, Session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above."""
    monkeypatch.setattr(fence, "set_committed_value", lambda *_: None)
    add(Session, endings.Reloading())
    assert bench.next(execute(engine, NEWER)) is Outcome.FINISHED
    assert notes(engine) == ["saved", "kept"]


def test_a_rollback_in_the_middle_does_no_harm(bench: Bench, engine: Engine, Session: Session) -> None:
    add(Session, endings.Reloading())
    assert bench.next() is Outcome.FINISHED
    assert notes(engine) == ["saved", "kept"]


def test_snoozed_keeps_its_work_and_its_tries(bench: Bench, engine: Engine, Session: Session) -> None:
    add(Session, endings.Sleepy())
    assert bench.next() is Outcome.SNOOZED
    (row,) = rows(engine)
    assert 290 < row.wait.total_seconds() <= 300
    assert (row.error_count, row.last_error, notes(engine)) == (0, None, ["before"])


def test_a_snooze_counts_from_its_end_however_long_the_transaction_was(
    bench: Bench, engine: Engine, Session: Session
) -> None:
    """now() is the beginning of the job's transaction: a job that had worked for longer ran again at once."""
    add(Session, endings.Late())
    assert bench.next() is Outcome.SNOOZED
    (row,), (began,) = rows(engine), notes(engine)
    assert row.run_at > datetime.fromisoformat(began) + timedelta(minutes=5)


def test_discarded_keeps_its_work_and_is_a_dead_letter(bench: Bench, engine: Engine, Session: Session) -> None:
    add(Session, endings.Unwanted())
    assert bench.next() is Outcome.EXPIRED
    (row,) = rows(engine)
    assert row.expired_at is not None
    assert row.last_error.startswith("Discard: the account is closed")
    assert notes(engine) == ["before", "told the account is closed"]


def test_a_serialization_failure_is_tried_again_at_once_and_from_then_on_in_the_usual_time(
    bench: Bench, engine: Engine, Session: Session
) -> None:
    """Ten threads on one row, all of them at once again and again, would use up their tries within a second."""
    add(Session, endings.BrokenOff())
    waits = []
    for _ in range(3):
        assert bench.next() is Outcome.RETRY
        (row,) = rows(engine)
        waits.append(row.run_at - row.failed_at)
        execute(engine, "UPDATE magik_jobs SET run_at = now()")()
    assert waits == [timedelta(0), timedelta(minutes=10), timedelta(minutes=10)]


def test_failed_is_tried_again_and_then_expires(bench: Bench, engine: Engine, Session: Session) -> None:
    add(Session, endings.Broken())
    assert bench.next() is Outcome.RETRY
    (row,) = rows(engine)
    assert 590 < row.wait.total_seconds() <= 600
    assert (row.error_count, row.expired_at, notes(engine)) == (1, None, [])
    execute(engine, "UPDATE magik_jobs SET run_at = now()")()
    assert bench.next() is Outcome.EXPIRED
    (row,) = rows(engine)
    assert row.error_count == 2
    assert row.expired_at == row.failed_at
    assert row.last_error.startswith("ValueError: broken")
    assert notes(engine) == ["told broken"]


def test_a_successor_of_its_own_key_is_added_when_the_row_has_ended(
    bench: Bench, engine: Engine, Session: Session
) -> None:
    add(Session, endings.Chunk(of="a"))
    for chunk in range(4):
        assert len(rows(engine)) == 1
        assert bench.next() is Outcome.FINISHED
        assert notes(engine) == [f"chunk {n}" for n in range(chunk + 1)]
    assert rows(engine) == []


def test_a_successor_among_many_is_added_when_the_row_has_ended(bench: Bench, engine: Engine, Session: Session) -> None:
    add(Session, endings.BulkChunk(of="a"))
    while rows(engine):
        assert bench.next() is Outcome.FINISHED
    assert sorted(notes(engine)) == sorted([*(f"chunk {n}" for n in range(4)), *["chunk 9"] * 3])


def test_a_successor_goes_back_with_the_run_that_added_it(bench: Bench, engine: Engine, Session: Session) -> None:
    add(Session, endings.Failing(of="a"))
    assert bench.next() is Outcome.EXPIRED
    assert [row.job_class for row in rows(engine)] == ["FailingChunk"]
    assert notes(engine) == []


@pytest.mark.parametrize(("actor", "outcome"), [("ada", Outcome.FINISHED), ("eve", Outcome.EXPIRED)])
def test_the_policy_is_asked_with_the_context_of_the_enqueue(
    bench: Bench, engine: Engine, Session: Session, actor: str, outcome: Outcome
) -> None:
    token = context.set({"actor": actor})
    job = endings.Guarded()
    context.reset(token)
    add(Session, job)
    assert bench.next() is outcome
    assert notes(engine) == (["ada"] if actor == "ada" else [])
    assert [row.last_error.split(":")[1].strip() for row in rows(engine)] == (
        [] if actor == "ada" else ["MAGIK_POLICY_DENIED"]
    )


def test_what_a_policy_adds_is_committed_though_it_says_no(bench: Bench, engine: Engine, Session: Session) -> None:
    add(Session, endings.Witnessed())
    assert bench.next() is Outcome.EXPIRED
    assert [(row.job_class, row.expired_at is None) for row in rows(engine)] == [("Witnessed", False), ("Chunk", True)]


def test_a_policy_that_does_not_decide_is_a_failure_of_the_job_and_no_leave(
    bench: Bench, engine: Engine, Session: Session
) -> None:
    add(Session, endings.Undecided())
    assert bench.next() is Outcome.RETRY
    assert notes(engine) == []
    (row,) = rows(engine)
    assert (row.error_count, row.expired_at) == (1, None)
    assert "MAGIK_POLICY_INVALID" in row.last_error
