"""Where an application has its own say in a commit, or left something open, a run ends as if there were no exchange.

Each of these once ended otherwise: with work that stayed without its end, an end without its work, or a job lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Mapped, scoped_session, sessionmaker
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.pool import NullPool

from magik_sa import Job, Retries, arg
from magik_sa.job_session import for_runs
from magik_sa.one_exchange import OneExchange
from magik_sa.outcome import Outcome
from tests.jobs.endings import note
from tests.tools.bench import Bench, add, begin_elsewhere, execute, in_one_exchange, notes, rows
from tests.tools.waiting import until

Session = sessionmaker[OrmSession]


class Meddling(Job, policy="system"):
    how: Mapped[str] = arg(default="")
    retries = Retries(times=1, backoff="constant", base="10m", jitter=0)

    def perform(self, session: OrmSession) -> None:
        note(session, "done")
        MEDDLES[self.how](session)


class Announced(Job, policy="system"):
    """Its successor is added only by a listener, at its commit."""

    idempotent_by = "of"
    of: Mapped[str] = arg()
    at: Mapped[int] = arg(default=0)

    def perform(self, session: OrmSession) -> None:
        event.listen(session, "before_commit", self._add_the_next, once=True)
        note(session, f"at {self.at}")

    def _add_the_next(self, session: OrmSession) -> None:
        session.add(Announced(of=self.of, at=self.at + 1))


def driver_of(session: OrmSession) -> Any:
    return session.connection().connection.driver_connection


def at_the_commit(does: Callable[[OrmSession], object]) -> Callable[[OrmSession], None]:
    return lambda session: event.listen(session, "before_commit", does, once=True)


def commit_and_go_on(session: OrmSession) -> None:
    driver_of(session).commit()
    note(session, "after")


left_open: list[Any] = []


def enter(context: Any) -> None:
    context.__enter__()
    left_open.append(context)


MEDDLES: dict[str, Callable[[OrmSession], object]] = {
    "": lambda _: None,
    "elsewhere": at_the_commit(begin_elsewhere),
    "commits": at_the_commit(commit_and_go_on),
    "rolls back": at_the_commit(lambda session: driver_of(session).rollback()),
    "a pipeline": lambda session: enter(driver_of(session).pipeline()),
    "a transaction": lambda session: enter(driver_of(session).transaction()),
}


@pytest.fixture
def bench(dsn: str, engine: Engine) -> Iterator[Bench]:
    with in_one_exchange(dsn, engine) as bench:
        yield bench
    for context in left_open:
        if not getattr(context, "closed", True):
            context.__exit__(None, None, None)
    left_open.clear()


def test_a_successor_that_a_listener_adds_at_the_commit_is_there(
    bench: Bench, engine: Engine, Session: Session
) -> None:
    add(Session, Announced(of="a"))
    assert bench.next() is Outcome.FINISHED
    assert [row.args["at"] for row in rows(engine)] == [1]


def test_what_a_superseded_run_writes_elsewhere_at_its_commit_goes_back(
    bench: Bench, engine: Engine, Session: Session
) -> None:
    add(Session, Meddling(how="elsewhere"))
    assert bench.next(execute(engine, "UPDATE magik_jobs SET version = 7")) is Outcome.SUPERSEDED
    assert notes(engine) == []


def test_what_follows_a_commit_of_a_listener_is_kept(bench: Bench, engine: Engine, Session: Session) -> None:
    add(Session, Meddling(how="commits"))
    assert bench.next() is Outcome.FINISHED
    assert (notes(engine), rows(engine)) == (["done", "after"], [])


def test_a_row_does_not_end_without_its_work(bench: Bench, engine: Engine, Session: Session) -> None:
    add(Session, Meddling(how="rolls back"))
    bench.next()
    assert (notes(engine), len(rows(engine))) == ([], 1)


@pytest.mark.parametrize("how", ["a pipeline", "a transaction"])
def test_what_is_left_open_on_the_driver_leaves_no_work_without_its_end(
    bench: Bench, engine: Engine, Session: Session, how: str
) -> None:
    """psycopg refuses to commit then, and to roll back: the connection has to be given up, as for its own failure."""
    add(Session, Meddling(how=how))
    assert bench.next() is not Outcome.FINISHED
    assert (notes(engine), len(rows(engine))) == ([], 1)


class Twice(OrmSession):
    """Writes of each commit that it was, and commits that, too."""

    def commit(self) -> None:
        super().commit()
        self.execute(text("INSERT INTO notes VALUES ('of the commit')"))
        super().commit()


class Quiet(OrmSession):
    """Swallows whatever goes wrong."""

    def commit(self) -> None:
        try:
            super().commit()
        except Exception:
            self.rollback()


def with_sessions(bench: Bench, kind: type[OrmSession]) -> Bench:
    bench.sessions = for_runs(scoped_session(sessionmaker(bench.connection.engine, class_=kind)))
    return bench


def test_a_session_that_commits_twice_keeps_both(bench: Bench, engine: Engine, Session: Session) -> None:
    add(Session, Meddling())
    assert with_sessions(bench, Twice).next() is Outcome.FINISHED
    assert (notes(engine), rows(engine)) == (["done", "of the commit"], [])


def test_a_session_that_swallows_errors_hides_no_supersession(bench: Bench, engine: Engine, Session: Session) -> None:
    add(Session, Meddling())
    outcome = with_sessions(bench, Quiet).next(execute(engine, "UPDATE magik_jobs SET version = 7"))
    assert (outcome, notes(engine)) == (Outcome.SUPERSEDED, [])


class Proxy:
    """A connection in the clothes of another, as tools for tracing make them."""

    def __init__(self, real: psycopg.Connection[Any]) -> None:
        object.__setattr__(self, "_real", real)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return psycopg.Connection

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_real"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "_real"), name, value)


def test_a_connection_in_a_wrapper_commits_as_it_does(
    dsn: str, bench: Bench, engine: Engine, Session: Session, database: str
) -> None:
    wrapped = create_engine(database, creator=lambda: Proxy(psycopg.connect(dsn)), poolclass=NullPool)
    with wrapped.connect() as connection:
        bench.connection = connection
        bench.sessions = for_runs(scoped_session(sessionmaker(wrapped)))
        add(Session, Meddling())
        assert bench.next() is Outcome.FINISHED
    assert (notes(engine), rows(engine)) == (["done"], [])


def test_a_commit_that_was_put_on_a_connection_is_called_and_stays(
    bench: Bench, engine: Engine, Session: Session
) -> None:
    driver: Any = bench.connection.connection.driver_connection
    called: list[str] = []

    def commit() -> None:
        called.append("commit")
        psycopg.Connection.commit(driver)

    driver.commit = commit
    add(Session, Meddling())
    assert bench.next() is Outcome.FINISHED
    assert (called, driver.commit, notes(engine)) == (["commit"], commit, ["done"])


def test_a_thread_that_closes_the_connection_there_is_noticed_at_once(
    bench: Bench, dsn: str, engine: Engine, Session: Session
) -> None:
    """libpq by itself would go on waiting, and reading from what is freed."""
    add(Session, Meddling())
    driver: Any = bench.connection.connection.driver_connection
    pid = driver.info.backend_pid
    driver.rollback()
    claimed = bench.claim()
    with psycopg.connect(dsn) as blocking, psycopg.connect(dsn, autocommit=True) as looking:
        blocking.execute("SELECT FROM magik_jobs FOR UPDATE")
        waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
        outcomes: list[Outcome] = []
        running = threading.Thread(target=lambda: outcomes.append(bench.run(claimed)))
        running.start()
        until(lambda: (looking.execute(waits, [pid]).fetchone() or [False])[0])
        driver.close()
        pids = "SELECT count(*) FROM pg_stat_activity WHERE pid <> %s AND wait_event_type = 'Lock'"
        until(lambda: looking.execute(pids, [pid]).fetchone() == (1,), what="it records its failure, on another")
        blocking.rollback()
    running.join()
    ended = outcomes == [Outcome.SUPERSEDED]  # the server had been told all of it, and has ended the run meanwhile
    assert ended or outcomes == [Outcome.RETRY]
    assert (notes(engine), len(rows(engine))) == ((["done"], 0) if ended else ([], 1))


def test_a_function_that_speaks_of_another_schema_is_none_of_ours(
    database: str, bench: Bench, engine: Engine, Session: Session
) -> None:
    """As where a schema was renamed, and another has its name now: its rows would be looked for there."""
    execute(engine, "CREATE SCHEMA moved")()
    for name in ("magik_jobs", "magik_claims", "magik_workers", "magik_queues"):
        execute(engine, f"ALTER TABLE {name} SET SCHEMA moved")()
    execute(engine, "ALTER FUNCTION magik_jobs_ended SET SCHEMA moved")()
    moved = create_engine(database, connect_args={"options": "-c search_path=moved,public"})
    assert OneExchange(engine).is_offered is False
    assert OneExchange(moved).is_offered is False
    moved.dispose()


def test_a_name_goes_in_the_encoding_of_its_connection(dsn: str, database: str) -> None:
    engine = create_engine(database, connect_args={"client_encoding": "latin1"})
    execute(engine, 'CREATE SCHEMA "schéma"')()
    execute(engine, "CREATE TABLE notes (what text)")()
    with engine.connect() as connection:
        in_one = OneExchange(engine)
        in_one._name = '"schéma".magik_jobs_ended'
        execute(
            engine,
            'CREATE FUNCTION "schéma".magik_jobs_ended(uuid, integer, boolean) RETURNS void LANGUAGE sql'
            " AS 'DELETE FROM magik_jobs WHERE id = $1'",
        )()
        bench = Bench(dsn, connection, in_one)
        add(sessionmaker(engine), Meddling())
        assert bench.next() is Outcome.FINISHED
        bench.locking.close()
    assert rows(engine) == []
    engine.dispose()
