"""The last statement of a run goes with its commit where it can, and each by itself where not; nothing else differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Mapped, sessionmaker
from sqlalchemy.orm import Session as OrmSession

from magik_sa import Job, Retries, arg
from magik_sa.one_exchange import OneExchange
from magik_sa.outcome import Outcome
from tests.jobs.endings import Chunk, note
from tests.tools.bench import Bench, add, begin_elsewhere, execute, in_one_exchange, notes, rows

Session = sessionmaker[OrmSession]
ENDED = "DELETE FROM magik_jobs"


class LeavingOpen(Job, policy="system"):
    """Writes, and leaves its Session in some state; a hook of the test's."""

    how: Mapped[str] = arg(default="")
    retries = Retries(times=1, backoff="constant", base="10m", jitter=0)

    def perform(self, session: OrmSession) -> None:
        note(session, "done")
        LEAVES[self.how](session)


class KeptWithCommit(Job, policy="system"):
    keep = "7d"

    def perform(self, session: OrmSession) -> None:
        note(session, "kept")


def commit_first(session: OrmSession) -> None:
    session.commit()


def say_before(session: OrmSession) -> None:
    event.listen(session, "before_commit", lambda session: note(session, "before the commit"), once=True)


LEAVES: dict[str, Callable[[OrmSession], object]] = {
    "": lambda _: None,
    "a savepoint": lambda session: session.begin_nested(),
    "another connection": begin_elsewhere,
    "nothing open": commit_first,
    "a listener": say_before,
}


WRITTEN = {"another connection": ["elsewhere"], "a listener": ["before the commit"]}


@pytest.fixture
def bench(dsn: str, engine: Engine) -> Iterator[Bench]:
    with in_one_exchange(dsn, engine) as bench:
        yield bench


@pytest.fixture
def statements(engine: Engine) -> list[str]:
    """What SQLAlchemy sends for itself from now on."""
    said: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: said.append(args[2]))
    return said


def test_the_end_of_a_run_takes_no_statement_of_its_own(
    bench: Bench, engine: Engine, Session: Session, statements: list[str]
) -> None:
    add(Session, LeavingOpen())
    statements.clear()
    assert bench.next() is Outcome.FINISHED
    assert statements == ["INSERT INTO notes VALUES (%(what)s)"]
    assert (notes(engine), rows(engine)) == (["done"], [])


def test_a_class_that_keeps_its_rows_has_them_kept_so(
    bench: Bench, engine: Engine, Session: Session, statements: list[str]
) -> None:
    add(Session, KeptWithCommit())
    execute(engine, "UPDATE magik_jobs SET version = 2147483647")()
    statements.clear()
    assert bench.next() is Outcome.FINISHED
    assert statements == ["INSERT INTO notes VALUES (%(what)s)"]
    (row,) = rows(engine)
    assert (row.finished_at is None, row.version, notes(engine)) == (False, 1, ["kept"])


@pytest.mark.parametrize("how", [how for how in LEAVES if how])
def test_where_it_cannot_go_with_the_commit_it_goes_by_itself(
    bench: Bench, engine: Engine, Session: Session, statements: list[str], how: str
) -> None:
    add(Session, LeavingOpen(how=how))
    statements.clear()
    assert bench.next() is Outcome.FINISHED
    assert [said for said in statements if said.startswith(ENDED)] != []
    assert rows(engine) == []
    assert sorted(notes(engine)) == sorted(["done", *WRITTEN.get(how, [])])


def test_with_a_successor_it_goes_by_itself(
    bench: Bench, engine: Engine, Session: Session, statements: list[str]
) -> None:
    """The next of the same key can be added only when the row has ended."""
    add(Session, Chunk(of="a"))
    statements.clear()
    assert bench.next() is Outcome.FINISHED
    assert [said for said in statements if said.startswith(ENDED)] != []
    assert [row.job_class for row in rows(engine)] == ["Chunk"]


class Own(psycopg.Connection[Any]):
    """An application's, which has something to do at a commit."""

    commits = 0

    def commit(self) -> None:
        type(self).commits += 1
        super().commit()


def test_a_commit_of_the_applications_own_is_called(dsn: str, bench: Bench, Session: Session, database: str) -> None:
    engine = create_engine(database, creator=lambda: Own.connect(dsn))
    with engine.connect() as connection:
        own = Bench(dsn, connection, bench.in_one)
        add(Session, LeavingOpen())
        before = Own.commits
        assert own.next() is Outcome.FINISHED
        assert Own.commits == before + 1
        own.locking.close()
    engine.dispose()


LATE = """
CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not so' USING ERRCODE = '23514'; END $$;
CREATE CONSTRAINT TRIGGER no AFTER INSERT ON notes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION no()"""


REFUSES = """
CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not so' USING ERRCODE = '23514'; END $$;
CREATE TRIGGER refuses BEFORE DELETE ON magik_jobs FOR EACH ROW EXECUTE FUNCTION refuses()"""


def test_what_the_server_says_only_at_the_commit_is_the_jobs_failure(
    bench: Bench, engine: Engine, Session: Session
) -> None:
    add(Session, LeavingOpen())
    execute(engine, LATE)()
    assert bench.next() is Outcome.RETRY
    (row,) = rows(engine)
    assert (row.error_count, notes(engine)) == (1, [])
    assert row.last_error.startswith("IntegrityError: (psycopg.errors.CheckViolation) not so")


def test_a_connection_that_is_lost_there_is_invalidated_and_the_failure_recorded_on_another(
    bench: Bench, engine: Engine, Session: Session, server: Any
) -> None:
    add(Session, LeavingOpen())
    execute(
        engine,
        LATE.replace(
            "RAISE 'not so' USING ERRCODE = '23514'", "PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL"
        ),
    )()
    assert bench.next() is Outcome.RETRY
    (row,) = rows(engine)
    assert (row.error_count, notes(engine)) == (1, [])
    assert row.last_error.startswith("OperationalError: (psycopg.errors.AdminShutdown) ")


@pytest.mark.parametrize(
    "withdraws",
    [
        "DROP FUNCTION magik_jobs_ended",
        "REVOKE EXECUTE ON FUNCTION magik_jobs_ended FROM PUBLIC, CURRENT_USER",
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_without_the_function_it_goes_by_itself(
    bench: Bench, engine: Engine, Session: Session, withdraws: str, late: bool
) -> None:
    """Where it goes only afterwards, one run is tried again."""
    add(Session, LeavingOpen())
    if late:
        execute(engine, withdraws)()
        assert bench.next() is Outcome.RETRY
        execute(engine, "UPDATE magik_jobs SET run_at = now()")()
    else:
        execute(engine, withdraws)()
        bench.in_one = OneExchange(engine)
    assert bench.next() is Outcome.FINISHED
    assert bench.in_one is not None
    assert not bench.in_one.is_offered
    assert (notes(engine), rows(engine)) == (["done"], [])


def test_another_driver_has_no_such_way_nor_has_a_server_that_does_not_answer(database: str) -> None:
    for other in (database.replace("+psycopg:", "+psycopg2:"), "postgresql+psycopg://somebody@127.0.0.1:1/nowhere"):
        engine = create_engine(other)
        assert not OneExchange(engine).is_offered
        engine.dispose()


@pytest.mark.parametrize("why", ["superseded", "failed"])
def test_the_connection_is_as_it_was_when_the_end_of_a_run_is_refused(
    bench: Bench, engine: Engine, Session: Session, why: str
) -> None:
    """SQLAlchemy takes a transaction for ended whose commit has failed: left open, the next job would fail in it."""
    add(Session, LeavingOpen())
    pid = bench.connection.scalar(text("SELECT pg_backend_pid()"))
    bench.connection.rollback()
    if why == "superseded":
        assert bench.next(execute(engine, "UPDATE magik_jobs SET version = version + 1")) is Outcome.SUPERSEDED
    else:
        execute(engine, REFUSES)()
        assert bench.next() is Outcome.RETRY
        execute(engine, "DROP TRIGGER refuses ON magik_jobs; UPDATE magik_jobs SET run_at = now()")()
    assert bench.next() is Outcome.FINISHED
    assert notes(engine) == ["done"]
    assert bench.connection.scalar(text("SELECT pg_backend_pid()")) == pid


def test_the_command_is_gone_when_the_run_is(bench: Bench, engine: Engine, Session: Session) -> None:
    """Left on the connection, it would end the same row with the next job's commit."""
    add(Session, LeavingOpen())
    assert bench.next() is Outcome.FINISHED
    driver: Any = bench.connection.connection.driver_connection
    assert "commit" not in vars(driver)
