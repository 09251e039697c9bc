"""Limits are in bytes, and whatever characters there are, the work goes on: in any encoding of database or terminal."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator

import psycopg
import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from magik_sa import EnqueueError, Job, MagikError, Schedule, context, once
from magik_sa.failure import LONGEST_TEXT
from magik_sa.recurring import pause
from tests.jobs.narrow import Plain
from tests.jobs.wide import WIDE, Wide
from tests.tools.effects import Effects
from tests.tools.program import magik
from tests.tools.schema import migrate
from tests.tools.server import Server
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess, dsn_of

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # a terminal that knows nothing else
UTF8 = "?client_encoding=utf8"  # without which SQLAlchemy itself does not get along with SQL_ASCII
ROW = f"{WIDE}:{WIDE}"  # of its schedule
ABOVE = WIDE[:-3] + "🦄"  # 256 bytes, fewer characters than WIDE


@pytest.fixture(params=["UTF8", "SQL_ASCII", "LATIN1"])
def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def there(server: Server, encoding: str) -> Iterator[str]:
    """A database in that encoding."""
    if not server.superuser:
        pytest.skip("the user of MAGIK_TEST_DATABASE_URL may make no such database")
    name = f"encoded_{secrets.token_hex(4)}"
    server.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
    server.give(name)
    migrate(server.url(name) + UTF8)
    yield server.url(name)
    server.execute(f"DROP DATABASE {name} (FORCE)")


def errors(url: str) -> list[bytes]:
    with psycopg.connect(dsn_of(url) + UTF8) as connection:
        return [
            row[0]
            for row in connection.execute("SELECT textsend(last_error) FROM magik_jobs WHERE expired_at > '-infinity'")
        ]


def add(url: str, *jobs: Job) -> None:
    engine = create_engine(url + UTF8)
    with Session(engine) as session, session.begin():
        session.add_all(jobs)
    engine.dispose()


@pytest.mark.parametrize("speaking", ["", "?client_encoding=latin1"])
def test_a_failure_is_recorded_whatever_the_server_can_hold(there: str, encoding: str, speaking: str) -> None:
    effects = Effects(there + UTF8)
    with WorkerProcess(there + speaking, "tests.jobs.narrow", env={**ASCII, "EFFECTS_URL": there + UTF8}) as worker:
        add(there, Plain(), Plain(ends_well=True))
        until(lambda: effects.count() == 2)
        (told,) = until(lambda: errors(there))
        assert worker.terminate() == 0
        assert worker.stderr().isascii()
    assert b"job_outcome_unrecorded" not in worker.stderr().encode()
    assert len(told) <= 2 * LONGEST_TEXT
    assert told.startswith(
        "ValueError: 日本🦄".encode() if encoding == "UTF8" else rb"ValueError: \u65e5\u672c\U0001f984"
    )
    assert "characters in all" in told.decode()  # and no half of one is left


@pytest.mark.parametrize("encoding", ["UTF8", "SQL_ASCII"], indirect=True)
def test_names_as_long_as_may_be_are_worked_and_shown(there: str) -> None:
    effects = Effects(there + UTF8)
    with WorkerProcess(there, "tests.jobs.wide", queue=WIDE, env={**ASCII, "EFFECTS_URL": there + UTF8}) as worker:
        worker.wait_ready()
        add(there, Wide(note="plain"))
        until(lambda: effects.count())
        until(lambda: errors(there))
        shown = magik(there, "jobs", "status", env=ASCII)
        assert worker.terminate() == 0
    engine = create_engine(there + UTF8)
    with Session(engine) as session, session.begin():
        assert pause(session, ROW, by=WIDE)
        assert once(session, [1], scope=WIDE)
    engine.dispose()
    assert shown.count(WIDE) > 3
    assert f"paused by {WIDE}" in magik(there, "jobs", "status", env=ASCII)


def test_a_notification_that_is_no_text_is_passed_over(there: str) -> None:
    effects = Effects(there + UTF8)
    with WorkerProcess(there, "tests.jobs.narrow", poll_interval="60s", env={"EFFECTS_URL": there + UTF8}) as worker:
        worker.wait_ready()
        with psycopg.connect(dsn_of(there) + "?client_encoding=sql_ascii", autocommit=True) as connection:
            (channel,) = connection.execute("SELECT 'magik_' || 'magik_jobs'::regclass::oid").fetchone() or ("",)
            text = channel if isinstance(channel, bytes) else channel.encode()
            for said in [
                b"default",
                b"\xf0\x9f",
                b"\xff",
            ] * 300:  # some come while the worker looks, some while it waits
                answer = connection.pgconn.exec_params(b"SELECT pg_notify($1, $2)", [text, said])
                assert answer.status in (psycopg.pq.ExecStatus.TUPLES_OK, psycopg.pq.ExecStatus.FATAL_ERROR)
        add(there, Plain(ends_well=True))
        until(lambda: effects.count())
        assert worker.terminate() == 0
    assert "locking_connection_lost" not in worker.stderr()


@pytest.mark.parametrize("encoding", ["LATIN1"], indirect=True)
def test_a_worker_whose_names_the_database_cannot_hold_is_refused(there: str) -> None:
    with WorkerProcess(there, "tests.jobs.wide", queue=["für", "🦄"]) as worker:
        assert worker.wait() == 2
    told, *_ = worker.stderr().splitlines()
    assert told.startswith("MAGIK_DATABASE_ENCODING: The database's encoding LATIN1 lacks characters of '🦄'")


def test_a_queue_that_is_no_text_is_refused(database: str) -> None:
    command = [sys.executable, "-m", "magik_sa.worker", "tests.jobs.narrow", "--queue", b"\xff"]
    with WorkerProcess(database, command=command) as worker:  # type: ignore[arg-type]
        assert worker.wait() == 2
    assert worker.stderr().startswith("MAGIK_SETTING_INVALID: ")


# ---- one byte above


def header(**words: str) -> Callable[[Session], object]:
    return lambda _: type("Above", (Job,), {}, **words)


ONE_ABOVE: dict[str, Callable[[Session], object]] = {
    "queue of a job": lambda _: Plain(queue=ABOVE),
    "queue of a class": header(queue=ABOVE),
    "name of a class": header(name=ABOVE),
    "policy of a class": header(policy=ABOVE),
    "name of a schedule": lambda _: Schedule(every="1h", name=ABOVE),
    "name of a schedule to pause": lambda session: pause(session, ROW + "é"[:1], by="x"),
    "by": lambda session: pause(session, "x", by=ABOVE),
    "scope": lambda session: once(session, [1], scope=ABOVE),
    "note, of the arguments": lambda _: Wide(note="🦄" * 65_534),  # 262,136 bytes, and {"note": …} around them
}


@pytest.mark.parametrize("what", ONE_ABOVE)
def test_one_byte_above_is_refused_by_its_field(engine: Engine, what: str) -> None:
    with Session(engine) as session, pytest.raises(MagikError) as refused:
        ONE_ABOVE[what](session)
    assert refused.value.field == what.split(" ")[0].strip(",")
    assert "byte" in refused.value.what
    assert "🦄" not in str(refused.value)


def test_the_largest_arguments_and_context_are_those_of_so_many_bytes() -> None:
    assert Wide(note="🦄" * 65_532 + "ab").note.endswith("ab")  # with '{"note": ' and '}' around it
    within, above = ({"c": "🦄" * 65_533 + rest} for rest in ("abc", "abcdef"))
    token = context.set(within)
    try:
        assert Plain().context == within
        context.set(above)
        with pytest.raises(EnqueueError, match="context: makes 262146 bytes"):
            Plain()
    finally:
        context.reset(token)
