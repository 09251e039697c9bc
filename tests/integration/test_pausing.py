"""Paused queues: what a claim, a flag and a look ahead make of the row, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from magik_sa import EnqueueError, Job, names, pause_queue, resume_queue, wake
from magik_sa.claim import Busy, Claims
from magik_sa.server import connect_locking
from magik_sa.wake import Flag
from magik_sa.worker import idle
from magik_sa.worker.idle import HINT, Idle, Look
from tests.tools.clock import set_in
from tests.tools.sessions import ONE_KEY, TWO_KEYS, advisory_locks, heard

NOBODY = Busy((), ())


class Refunded(Job, policy="system", queue="refunds"):
    """Declares a queue that nothing else has."""

    def perform(self, session: Session) -> None: ...


class Locking:
    """A worker's locking connection, without the worker."""

    def __init__(self, dsn: str) -> None:
        self.dsn, self.connection = dsn, connect_locking(dsn, "one")
        self.names = names.find(self.connection, None)
        owner = wake.register(self.connection, self.names, "one", ["mail"])
        self.connection.execute(f"LISTEN {self.names.channel}".encode())
        self.claims = Claims(self.connection, self.names, owner, "one", 3600)
        self.idle = Idle(self.connection, self.names, ["mail", "other"], 3600, self.claims.walks)

    def take(self, n: int = 10, queue: str = "mail") -> int:
        return len(self.claims.claim(queue, n, ["Known"], NOBODY).jobs)

    def told(self) -> list[str]:
        return heard(self.dsn, self.connection, self.names.channel)


@pytest.fixture(autouse=True)
def _its_clock_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    set_in(monkeypatch, idle)


@pytest.fixture
def one(dsn: str) -> Iterator[Locking]:
    locking = Locking(dsn)
    yield locking
    locking.connection.close()


def add(app: psycopg.Connection[Any], n: int, queue: str = "mail", run_at: str = "now()") -> None:
    rows = f"SELECT 'Known', %s, {run_at} FROM generate_series(1, %s)"
    app.execute(f"INSERT INTO magik_jobs (job_class, queue, run_at) {rows}".encode(), (queue, n))


def pause(app: psycopg.Connection[Any], name: str = "mail") -> None:
    app.execute("INSERT INTO magik_queues (name) VALUES (%s)", (name,))


def resume(app: psycopg.Connection[Any], name: str = "mail") -> None:
    app.execute("DELETE FROM magik_queues WHERE name = %s", (name,))


def test_a_claim_takes_nothing_of_a_paused_queue_and_locks_nothing(
    app: psycopg.Connection[Any], one: Locking, dsn: str
) -> None:
    add(app, 3)
    add(app, 2, "other")
    pause(app)
    assert one.take() == 0
    assert advisory_locks(dsn)[ONE_KEY] == 0
    assert one.take(queue="other") == 2
    resume(app)
    assert one.take() == 3


def test_after_a_pause_the_marks_hide_nothing(app: psycopg.Connection[Any], one: Locking) -> None:
    """The walks meanwhile have found nothing, and have passed nothing either: no full walk is needed afterwards."""
    add(app, 1)
    (job,) = one.claims.claim("mail", 1, ["Known"], NOBODY).jobs
    add(app, 4, run_at="now() - interval '1 min'")
    pause(app)
    for _ in range(3):
        assert one.take() == 0
    resume(app)
    walks = one.claims.walks
    assert len(walks._walk("mail", 10, ["Known"], [job.id], full=False)) == 4


def test_a_paused_queue_has_no_next_job_and_no_flag(app: psycopg.Connection[Any], one: Locking, dsn: str) -> None:
    add(app, 1, run_at="now() + interval '1 min'")
    assert wake.seconds_to_next(one.connection, one.names, "mail", ["Known"]) is not None
    pause(app)
    assert wake.seconds_to_next(one.connection, one.names, "mail", ["Known"]) is None
    assert wake.raise_flag(one.connection, one.names, "mail") is Flag.PAUSED
    assert advisory_locks(dsn)[TWO_KEYS] == 0
    resume(app)
    assert wake.raise_flag(one.connection, one.names, "mail") is Flag.OURS


def test_who_waits_beside_a_paused_queue_sleeps_as_long_as_ever(app: psycopg.Connection[Any], one: Locking) -> None:
    add(app, 1_000)
    pause(app)
    assert one.idle.raise_flags(), "that of the other queue"
    one.idle.tick(["Known"])  # the look for dead workers, which would be due at once
    one.idle.settle(["Known"])
    assert one.idle.seconds() == pytest.approx(HINT)
    assert one.idle.tick(["Known"]) is Look.NO


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO magik_queues (name) VALUES ('mail')",
        "UPDATE magik_queues SET paused_by = 'eve'",
        "DELETE FROM magik_queues",
        "TRUNCATE magik_queues",
    ],
)
def test_every_change_tells_the_workers_once(app: psycopg.Connection[Any], one: Locking, statement: str) -> None:
    app.execute("SET search_path = pg_catalog")
    app.execute(statement.replace("magik_queues", "public.magik_queues").encode())
    assert one.told() == [wake.PAUSES]


def test_adding_to_a_paused_queue_tells_nobody(app: psycopg.Connection[Any], one: Locking) -> None:
    pause(app)
    one.idle.raise_flags()
    one.told()
    for _ in range(5):
        add(app, 1)
    assert one.told() == []
    resume(app)
    one.idle.raise_flags()
    add(app, 1)
    assert one.told() == [wake.PAUSES, "mail"]


# ---- from Python


@pytest.mark.parametrize("kind", ["connection", "session", "scoped_session"])
def test_a_pause_holds_from_the_commit_of_the_caller_on(
    engine: Engine, app: psycopg.Connection[Any], kind: str
) -> None:
    add(app, 1)
    with engine.connect() as connection:
        given: Any = {
            "connection": connection,
            "session": Session(connection),
            "scoped_session": scoped_session(sessionmaker(connection)),
        }[kind]
        assert pause_queue(given, "mail", "ada")
        assert not pause_queue(given, "mail", "eve")
        assert app.execute("SELECT FROM magik_queues").rowcount == 0
        given.commit()
        assert app.execute("SELECT name, paused_by FROM magik_queues").fetchall() == [("mail", "ada")]
        assert resume_queue(given, "mail")
        assert not resume_queue(given, "mail")
        given.commit()
    assert app.execute("SELECT FROM magik_queues").rowcount == 0


def test_a_queue_that_nothing_knows_is_refused_with_what_was_meant(
    engine: Engine, app: psycopg.Connection[Any]
) -> None:
    add(app, 1, "payments")
    with Session(engine) as session:
        acts: list[Callable[[], bool]] = [
            lambda: pause_queue(session, "paiments", "ada"),
            lambda: resume_queue(session, "paiments"),
        ]
        for act in acts:
            with pytest.raises(EnqueueError, match="MAGIK_QUEUE_UNKNOWN.*did you mean 'payments'") as unknown:
                act()
            assert unknown.value.field == "name"
        assert pause_queue(session, "paiments", "ada", create=True)
        assert resume_queue(session, "paiments")


@pytest.mark.parametrize("known", ["live", "dead", "worker", "class", "paused"])
def test_a_queue_is_known_by_a_job_a_worker_or_a_class(
    engine: Engine, app: psycopg.Connection[Any], dsn: str, known: str
) -> None:
    queue = "refunds" if known == "class" else "mail"
    if known in ("live", "dead"):
        add(app, 1, "a")
        add(app, 2)
        add(app, 1, "z")
    if known == "dead":
        app.execute("UPDATE magik_jobs SET expired_at = now()")
    if known == "paused":
        pause(app)
    locking = Locking(dsn) if known == "worker" else None
    with Session(engine) as session:
        assert pause_queue(session, queue, "ada") == (known != "paused")
    if locking:
        locking.connection.close()


@pytest.mark.parametrize(("name", "by"), [("", "ada"), ("q" * 256, "ada"), (5, "ada"), ("mail", ""), ("mail", None)])
def test_what_is_no_text_is_refused(engine: Engine, name: Any, by: Any) -> None:
    with Session(engine) as session, pytest.raises(EnqueueError, match="MAGIK_ARGS_INVALID"):
        pause_queue(session, name, by, create=True)
