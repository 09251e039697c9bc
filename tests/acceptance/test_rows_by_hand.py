"""A row that SQL has written may hold anything: it becomes that job's failure or is left alone, and the others run."""

from __future__ import annotations

import json
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
            waiting = "SELECT FROM magik_jobs WHERE id = ANY(%s) AND coalesce(finished_at, expired_at) IS NULL"
            until(
                lambda: connection.execute(waiting, [[*ids, marker.id]]).rowcount == 0, 60, what="all rows have ended"
            )
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


DEEP = nested(10_000)
NEVER = ("null", "[1]", "{}", '"x"')
SPOILT: dict[str, tuple[str, ...]] = {
    "whole": (*NEVER, "1.5", "1e400", str(2**63), '"NaN"'),
    "flag": ("null", "[1]", "{}", '"x"', "2"),
    "ratio": NEVER,
    "amount": (*NEVER, '"NaN"', '"Infinity"'),
    "name": ("null", "[1]", "{}", "1", "true"),
    "who": (*NEVER, "1"),
    "at": (*NEVER, '"2026-01-01T00:00:00"', '"10000-01-01T00:00:00Z"', "1e400", "true"),
    "day": (*NEVER, '"10000-01-01"', '"2026-02-30"', "1e400"),
    "span": (*NEVER, "1e400", '"P999999999999D"'),
    "data": ("null", "[1]", "{}", "1"),
    "colour": (*NEVER, "1"),
    "word": (*NEVER, "true"),
    "maybe": ("[1]", "{}", '"x"'),
    "items": ("null", "1", "{}", "[null]", '["x"]', DEEP),
    "names": ("null", "1", "[1]", '{"a": "x"}', f'{{"a": {DEEP}}}'),
    "several": ("null", "1", "{}", '["x"]'),
    "pair": (*NEVER, '[1, "a", 2]'),
    "place": (*NEVER, '{"street": 1, "number": "x"}'),
    "both": (*NEVER, '{"left": 1}'),
    "point": (*NEVER, '{"x": {}}'),
    "anything": (DEEP, "1e5000"),
}


def test_a_value_that_its_argument_cannot_have_is_the_failure_of_the_job(
    database: str, engine: Engine, effects: Effects, connection: Connection
) -> None:
    """Whatever the argument takes: wrong in kind, null, empty, too large, in the year 10000, without an end."""
    ids = {
        insert(connection, f'{{"{name}": {value}}}', "Every"): (name, value[:40])
        for name, values in SPOILT.items()
        for value in values
    }
    fit = insert(connection, '{"whole": 5, "colour": "red", "surplus": {"a": [1e400]}, "": null}', "Every")
    stderr = work(database, engine, effects, [*ids, fit])
    rows = dict(connection.execute("SELECT id, last_error FROM magik_jobs WHERE error_count = 1").fetchall())
    assert rows.keys() == ids.keys()
    for id, (name, value) in ids.items():
        assert re.match(f"EnqueueError: MAGIK_ARGS_INVALID: ({name}|args):", rows[id]), (name, value, rows[id])
    assert (effects.count("Every"), len(effects.starts(fit))) == (1, 1)
    assert stderr.count("event=job_expired") == len(ids)
    expect_few_lines(stderr, len(ids) + 2)


LAST = 2**31 - 1
ENDS = {"finishes": (1, 0), "saves": (1, 0), "snoozes": (2, 0), "is discarded": (1, 0), "fails": (3, 3)}


def test_the_version_of_a_row_goes_round(
    database: str, engine: Engine, effects: Effects, connection: Connection
) -> None:
    """At its last number too a job saves, snoozes, fails and ends as any other, and is not run twice."""
    ids = {
        insert(connection, f'{{"how": "{how}"}}', "Ends", version=str(version)): (how, version)
        for how in ENDS
        for version in (LAST, LAST - 1, LAST - 2, 0, -1, -LAST - 1)
    }
    stderr = work(database, engine, effects, list(ids))
    rows = connection.execute("SELECT id, version, error_count FROM magik_jobs").fetchall()
    counted = {id: error_count for id, _, error_count in rows}
    assert {id: (len(effects.starts(id)), counted[id]) for id in ids} == {id: ENDS[how] for id, (how, _) in ids.items()}
    assert all(-LAST - 1 <= version <= LAST for _, version, _ in rows)
    assert not re.search("event=(outcome_unrecorded|job_superseded)", stderr)
    expect_few_lines(stderr, 60)


def expect_few_lines(stderr: str, ends: int) -> None:
    """A line for each end of a run, and a handful of the worker's own: nothing that is said at every poll."""
    assert len(stderr.splitlines()) <= ends + 10, stderr[:5000]


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
    "as early as it gets": {"run_at": "4713-01-01 00:00 BC"},
    "the first of all": {"priority": "-32768"},
    "the last of all": {"priority": "32767"},
    "added in the future": {"enqueued_at": "294276-01-01", "failed_at": "infinity"},
    "a count at its end": {"error_count": str(LAST)},
    "a context that is a number": {"context": "1e400"},
    "a context that is text": {"context": '"traceparent"'},
    "a context without an end": {"context": f'{{"a": {nested(5000)}}}'},
    "a trace that is none": {"context": '{"traceparent": ["garbage", null], "tracestate": 5}'},
    "a key that is too long": {"key_digest": "\\x" + "00" * 5_000},
    "a key of another class's": {"key_digest": "\\x" + "ab" * 32},
    "200 KiB": {"args": f'{{"number": 1, "data": {{"text": "{"x" * 200 * 1024}"}}}}'},
    "2 MiB": {"args": f'{{"number": 1, "data": {{"text": "{"x" * 2 * 1024**2}"}}}}'},
    "2 MiB that nobody declared": {"args": f'{{"number": 1, "more": "{"x" * 2 * 1024**2}"}}'},
    "no name": {"args": '{"number": 1, "": {"": [null]}}'},
}


WHOLE = "SELECT j::text, xmin::text, ctid::text FROM magik_jobs j WHERE id = ANY(%s) ORDER BY id"
LEFT_ALONE: dict[str, dict[str, str]] = {
    "never": {"run_at": "infinity"},
    "in a while": {"run_at": "294276-12-31"},
    "finished": {"finished_at": "now"},
    "expired": {"expired_at": "-infinity"},
    "both": {"finished_at": "infinity", "expired_at": "now"},
    "a queue on two lines": {"queue": "default\n"},
    "a queue that commands": {"queue": "\x1b[2J\u202edefault"},
}


def test_what_python_cannot_hold_of_a_row_keeps_neither_its_job_nor_another_from_running(
    database: str, engine: Engine, effects: Effects, connection: Connection
) -> None:
    ids = [insert(connection, **{"args": '{"number": 1}', **columns}) for columns in STRANGE.values()]
    later = [insert(connection, '{"number": 1}', **columns) for columns in LEFT_ALONE.values()]
    before = connection.execute(WHOLE, [later]).fetchall()
    stderr = work(database, engine, effects, ids)
    assert {why: len(effects.starts(id)) for why, id in zip(STRANGE, ids, strict=True)} == dict.fromkeys(STRANGE, 1)
    assert [effects.starts(id) for id in later] == [[]] * len(later)
    assert connection.execute(WHOLE, [later]).fetchall() == before
    assert "locking_connection_lost" not in stderr
    expect_few_lines(stderr, len(ids) + 1)


NOBODYS = (
    "gone.Job",
    "os.system('id')",
    "UnknownJob",
    "magik_sa.UnknownJob",
    "picky",
    "Job",
    "Abstract",
    "%s %(id)s {} {jobs} :name",
    '"; DROP TABLE magik_jobs; --',
    "\x1b[31mred\x1b[0m",
    "two\r\nlines\u2028",
    "\u202egnp\u200b.exe",
)


def test_a_class_nobody_declared_is_left_as_it_was_and_named_in_the_log(
    database: str, engine: Engine, effects: Effects, connection: Connection
) -> None:
    query = "SELECT *, xmin::text, ctid::text FROM magik_jobs WHERE job_class <> 'Picky' ORDER BY id"
    for job_class in NOBODYS:
        insert(connection, "{}", job_class, priority="-100")
    before = connection.execute(query).fetchall()
    with WorkerProcess(database, "tests.jobs.picky", concurrency=1, poll_interval="500ms") as worker:
        named = worker.wait_ready().wait_log(r"event=jobs_of_unknown_classes classes=(.*)").group(1)
        with OrmSession(engine) as session, session.begin():
            session.add_all([Picky(number=number) for number in range(5)])
        until(lambda: effects.finished("Picky") == 5, what="jobs of known classes run")
        never(lambda: connection.execute(query).fetchall() != before, during=1.0, what="a row is touched")
        until(lambda: advisory_locks(effects.dsn)[ONE_KEY] == 0, what="no job is locked")
        until(lambda: connection.execute("SELECT FROM magik_claims").rowcount == 0, what="no job is noted")
        assert worker.terminate() == 0
    for job_class in NOBODYS:
        assert json.dumps(job_class)[1:-1] in named
    assert effects.count() == 5
    assert worker.stderr().count("jobs_of_unknown_classes") == 1
    expect_few_lines(worker.stderr(), 5)


def test_many_classes_that_nobody_declared_make_one_short_line(database: str, connection: Connection) -> None:
    for number in range(500):
        insert(connection, "{}", f"{number:03}" + "x" * 250)
    with WorkerProcess(database, "tests.jobs.picky", concurrency=1, poll_interval="500ms") as worker:
        line = worker.wait_ready().wait_log(r"event=jobs_of_unknown_classes classes=(.*)").group(1)
        assert worker.terminate() == 0
    assert line.endswith(', and 480 more"')
    assert len(line) < 6_000


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
