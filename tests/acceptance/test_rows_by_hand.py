"""A row that SQL has written may hold anything: it becomes that job's failure or is left alone, and the others run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine
from sqlalchemy.orm import Session as OrmSession

from tests.jobs.picky import Picky
from tests.tools.effects import Effects
from tests.tools.sessions import ONE_KEY, advisory_locks
from tests.tools.waiting import never, until
from tests.tools.workers import WorkerProcess

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(dsn: str) -> Iterator[Connection]:
    """Somebody with psql."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def insert(connection: Connection, args: str, job_class: str = "Picky", **columns: str) -> UUID:
    """A row with these values, each as SQL text casts to its column."""
    named = {"job_class": job_class, "args": args, **columns}
    statement = sql.SQL("INSERT INTO magik_jobs ({}) VALUES ({}) RETURNING id").format(
        sql.SQL(", ").join(map(sql.Identifier, named)), sql.SQL(", ").join(map(sql.Literal, named.values()))
    )
    row = connection.execute(statement).fetchone()
    assert row is not None
    id: UUID = row[0]
    return id


def work(database: str, engine: Engine, effects: Effects, ids: list[UUID]) -> str:
    """Run a worker until none of these rows is waiting, and a job added after them has run; its stderr."""
    with WorkerProcess(database, "tests.jobs.picky", concurrency=1, poll_interval="500ms") as worker:
        worker.wait_ready()
        with OrmSession(engine) as session, session.begin():
            session.add(marker := Picky(number=7, priority=32767))
        with psycopg.connect(effects.dsn, autocommit=True) as connection:
            waiting = "SELECT FROM magik_jobs WHERE id = ANY(%s) AND expired_at IS NULL"
            until(lambda: connection.execute(waiting, [[*ids, marker.id]]).rowcount == 0, what="all rows have ended")
        assert worker.terminate() == 0
    return worker.stderr()


def nested(levels: int) -> str:
    """A list in a list in a list …, as JSON."""
    return "[" * levels + "]" * levels


UNFIT = {
    "of a wrong type": ('{"number": "many"}', "number:"),
    "missing": ("{}", "number: is missing"),
    "null": ('{"number": null}', "number:"),
    "outside its constraint": ('{"number": -1}', "number:"),
    "of a wrong type, with a default": ('{"number": 1, "data": [1]}', "data:"),
    "too many digits": (f'{{"number": 1{"0" * 5000}}}', "args: cannot be read"),
    "nested too deeply": (f'{{"number": 1, "data": {{"a": {nested(900)}}}}}', "data: is nested too deeply"),
    # where the stack ends, in reading the JSON or in checking the value, is the interpreter's business
    "nested much too deeply": (f'{{"number": 1, "data": {{"a": {nested(5000)}}}}}', "(args: cannot|data: is nested)"),
    "never looked at": ('{"number": "many"}', "number:"),
}


def test_arguments_that_do_not_fit_the_class_are_the_failure_of_their_job(
    database: str, engine: Engine, effects: Effects, connection: Connection
) -> None:
    ids = {
        insert(connection, args, "Lazy" if why == "never looked at" else "Picky"): why
        for why, (args, _) in UNFIT.items()
    }
    stderr = work(database, engine, effects, list(ids))

    query = "SELECT id, error_count, last_error, failed_at > enqueued_at, finished_at FROM magik_jobs"
    rows = {row[0]: row[1:] for row in connection.execute(query)}
    assert rows.keys() == ids.keys()
    for id, (error_count, last_error, failed, finished_at) in rows.items():
        assert re.match(f"EnqueueError: MAGIK_ARGS_INVALID: {UNFIT[ids[id]][1]}", last_error), ids[id]
        assert (error_count, failed, finished_at) == (2, True, None), ids[id]
    assert stderr.count("event=job_retry") == stderr.count("event=job_expired") == len(ids)
    assert effects.count() == 1  # the marker's: no body of theirs has begun
    assert advisory_locks(effects.dsn)[ONE_KEY] == 0


STRANGE: dict[str, dict[str, str]] = {
    "before all others": {"run_at": "-infinity"},
    "before Christ": {"run_at": "2000-01-01 00:00 BC"},
    "never added": {"enqueued_at": "infinity"},
    "failed in the far future": {"failed_at": "20000-01-01"},
    "a context that is none": {"context": "[1]"},
    "a context of many digits": {"context": f'{{"n": 1{"0" * 5000}}}'},
    "the last version": {"version": str(2**31 - 1)},
    "a negative count": {"error_count": "-5"},
    "a long error": {"last_error": "x" * 2_000_000},
    "a key that is no digest": {"key_digest": "\\x00"},
    "an argument nobody declared": {"args": '{"number": 1, "colour": "red"}'},
    "an id of its own": {"id": "00000000-0000-0000-0000-000000000000"},
}


def test_what_python_cannot_hold_of_a_row_keeps_neither_its_job_nor_another_from_running(
    database: str, engine: Engine, effects: Effects, connection: Connection
) -> None:
    ids = [insert(connection, **{"args": '{"number": 1}', **columns}) for columns in STRANGE.values()]
    later = insert(connection, '{"number": 1}', run_at="infinity")
    stderr = work(database, engine, effects, ids)
    assert [len(effects.starts(id)) for id in ids] == [1] * len(ids)
    assert effects.starts(later) == []
    assert "locking_connection_lost" not in stderr


def test_a_class_nobody_declared_is_left_as_it_was_and_named_in_the_log(
    database: str, engine: Engine, effects: Effects, connection: Connection
) -> None:
    query = "SELECT *, xmin::text, ctid::text FROM magik_jobs WHERE job_class <> 'Picky' ORDER BY id"
    for job_class in ("gone.Job", "os.system('id')", "UnknownJob", "magik_sa.UnknownJob", "picky"):
        insert(connection, "{}", job_class, priority="-100")
    before = connection.execute(query).fetchall()
    with WorkerProcess(database, "tests.jobs.picky", concurrency=1, poll_interval="500ms") as worker:
        named = worker.wait_ready().wait_log(r"event=jobs_of_unknown_classes classes=(.*)").group(1)
        with OrmSession(engine) as session, session.begin():
            session.add_all([Picky(number=number) for number in range(5)])
        until(lambda: effects.finished("Picky") == 5, what="jobs of known classes run")
        never(lambda: connection.execute(query).fetchall() != before, during=1.0, what="a row is touched")
        assert advisory_locks(effects.dsn)[ONE_KEY] == 0
        assert connection.execute("SELECT count(*) FROM magik_claims").fetchone() == (0,)
        assert worker.terminate() == 0
    for job_class in ("gone.Job", "os.system('id')", "magik_sa.UnknownJob", "picky"):
        assert job_class in named
    assert effects.count() == 5


def test_how_the_server_shows_times_does_not_matter(
    database: str, engine: Engine, effects: Effects, connection: Connection
) -> None:
    name = sql.Identifier(connection.info.dbname)
    connection.execute(sql.SQL("ALTER DATABASE {} SET datestyle TO 'German, DMY'").format(name))
    connection.execute(sql.SQL("ALTER DATABASE {} SET timezone TO 'Asia/Kolkata'").format(name))
    engine.dispose()
    ids = [insert(connection, '{"number": 1}'), insert(connection, '{"number": "many"}')]
    work(database, engine, effects, ids)
    assert effects.count() == 2  # the first, and the marker
    error = connection.execute("SELECT last_error FROM magik_jobs").fetchone()
    assert error is not None
    assert "MAGIK_ARGS_INVALID" in error[0]
