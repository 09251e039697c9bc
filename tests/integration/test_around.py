"""What an application puts around each perform: in order, in the job's transaction, its errors the job's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import sessionmaker

from magik_sa import DeclarationError, around, around_perform
from magik_sa.outcome import Outcome
from tests.jobs.around import Inside, request
from tests.jobs.idle_hands import Alone
from tests.tools.bench import Bench, add, notes, rows

Session = sessionmaker[OrmSession]


@pytest.fixture
def bench(dsn: str, engine: Engine) -> Iterator[Bench]:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE notes (what text)"))
    with engine.connect() as connection:
        bench = Bench(dsn, connection)
        yield bench
        bench.locking.close()


def test_several_nest_in_the_order_of_their_registration(bench: Bench, engine: Engine, Session: Session) -> None:
    add(Session, Inside(how="fine"))
    assert bench.next() is Outcome.FINISHED
    assert notes(engine) == ["outer in", "inner in", "perform of fine", "inner out", "outer out"]
    assert request.get() == "none"


@pytest.mark.parametrize("how", ["refused", "left badly", "raising"])
def test_an_error_in_what_is_around_is_the_jobs_failure(
    bench: Bench, engine: Engine, Session: Session, how: str
) -> None:
    """Also one of the job's that is swallowed there: it would be taken for a success."""
    add(Session, Inside(how=how))
    assert bench.next() is Outcome.RETRY
    assert notes(engine) == []
    (row,) = rows(engine)
    expected = "ZeroDivisionError" if how == "raising" else f"ValueError: {how}"
    assert (row.error_count, row.last_error.startswith(expected)) == (1, True)


def test_a_job_that_snoozes_does_so_from_inside(bench: Bench, engine: Engine, Session: Session) -> None:
    add(Session, Inside(how="snoozing"))
    assert bench.next() is Outcome.SNOOZED
    assert notes(engine) == ["outer in", "inner in", "perform of snoozing", "inner out"]


def test_a_session_that_was_closed_has_lost_the_work_and_the_job_fails(
    bench: Bench, engine: Engine, Session: Session
) -> None:
    add(Session, Inside(how="closed"))
    assert bench.next() is Outcome.RETRY
    assert notes(engine) == []
    (row,) = rows(engine)
    assert row.last_error.startswith("RunError: MAGIK_SESSION_CLOSED")


def returning(job: Any, session: OrmSession) -> None: ...


@contextmanager
def already(job: Any, session: OrmSession) -> Iterator[None]:
    yield


@pytest.mark.parametrize("wrong", [returning, already, "outer", None])
def test_what_is_no_generator_function_is_refused(wrong: Any) -> None:
    with pytest.raises(DeclarationError, match=r"MAGIK_OPTION_INVALID: @around_perform on .* yields once"):
        around_perform(wrong)


def test_the_same_function_made_again_takes_the_place_of_its_older_self(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(around, "_around", {})
    told: list[str] = []

    def made(what: str) -> Any:
        def same(job: Any, session: Any) -> Iterator[None]:
            told.append(what)
            yield

        return same

    session: Any = None
    around_perform(made("old"))
    around_perform(made("new"))
    around.perform(Alone(), session)
    assert told == ["new"]
