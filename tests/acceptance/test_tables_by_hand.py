"""What SQL has written into the tables around the jobs keeps no worker from working, and no operator from looking."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session as OrmSession

from tests.jobs.picky import Picky
from tests.tools.effects import Effects
from tests.tools.program import run
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

Connection = psycopg.Connection[Any]

# Of nobody, of the future, longer than a notification can be, and with commands for a terminal.
AROUND = """
INSERT INTO magik_workers VALUES
  (-1, 'infinity', E'\\x1b[2Jgone\\r\\n', '{default}'), (2147483647, '-infinity', '', '{}'),
  (0, now(), repeat('x', 100000), ARRAY[NULL, '', repeat('q', 10000), E'two\\nlines', 'default']),
  (-2, '4713-01-01 BC', E'\\u202e', '{{a,b},{c,d}}');
INSERT INTO magik_claims VALUES
  (gen_random_uuid(), E'\\x1b[2J', -1, 'infinity', 'infinity', true),
  (gen_random_uuid(), '', 2147483647, '-infinity', '-infinity', false);
INSERT INTO magik_queues VALUES
  ('', 'infinity', E'\\x1b[31m'), (E'two\\nlines', '-infinity', NULL), (repeat('q', 2500), now(), repeat('x', 100000));
INSERT INTO magik_job_schedules VALUES
  ('infinite', 'gone.Job', '{}', 'infinity', '-infinity', NULL, NULL),
  (E'\\x1b[2J\\r\\n', E'\\u202e', '{"every": []}', '-infinity', 'infinity', 'infinity', E'\\x1b'),
  ('huge', 'gone.Job', ('{"every": 1' || repeat('0', 6000) || '}')::jsonb, '294276-01-01', NULL, NULL, NULL)"""

OFTEN = """
from sqlalchemy.orm import Mapped, Session
from magik_sa import Job, Schedule
from tests.tools.effects import record


class Often(Job, policy="system"):
    schedule = Schedule(every="1h")

    def perform(self, session: Session) -> None:
        record(self)
"""


@pytest.fixture
def connection(dsn: str) -> Iterator[Connection]:
    """Somebody with psql."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def count(connection: Connection, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def expect_plain(text: str) -> None:
    """Lines, and nothing else that a terminal would act on."""
    assert all(line.isprintable() for line in text.split("\n")), repr(text)


def test_rows_around_the_jobs_hold_nobody_up(
    database: str, engine: Engine, effects: Effects, connection: Connection
) -> None:
    with OrmSession(engine) as session, session.begin():
        session.add(noted := Picky(number=1))
        session.add_all([Picky(number=number) for number in range(3)])
    connection.execute(AROUND.encode())
    note = "INSERT INTO magik_claims VALUES (%s, 'x', -1, 'infinity', 'infinity', true)"
    connection.execute(note, [noted.id])
    with WorkerProcess(database, "tests.jobs.picky", concurrency=1, poll_interval="500ms") as worker:
        worker.wait_ready()
        until(lambda: effects.finished("Picky") == 4, what="the jobs have run")
        until(lambda: count(connection, "SELECT count(*) FROM magik_workers") == 1, what="the workers of nobody go")
        for command in (["jobs", "status"], ["doctor"]):
            (code, out, err), (same, document, nothing) = run(database, *command), run(database, *command, "--json")
            assert (err, nothing) == ("", "")
            assert code == same < 2
            expect_plain(out)
            json.loads(document)
            assert document.isascii()
        assert worker.terminate() == 0
    assert "locking_connection_lost" not in worker.stderr()
    assert worker.stderr().count("event=job_interrupted") == 1
    assert len(worker.stderr().splitlines()) <= 14, worker.stderr()


def test_the_row_of_a_schedule_is_put_right(
    database: str, effects: Effects, connection: Connection, tmp_path: Path
) -> None:
    """By the worker that starts, whatever it says; afterwards '-infinity' is a tick that is due."""
    connection.execute(
        "INSERT INTO magik_job_schedules VALUES ('Often', 'x', '{\"zone\": []}', 'infinity', 'infinity', NULL, NULL)"
    )
    (tmp_path / "often.py").write_text(OFTEN)
    move = "UPDATE magik_job_schedules SET next_run_at = %s, last_run_at = 'infinity' WHERE name = 'Often'"
    with WorkerProcess(database, "often", path=tmp_path, log_format="json", poll_interval="500ms") as worker:
        worker.wait_ready()
        connection.execute(move, ["-infinity"])
        until(lambda: effects.finished("Often") == 1, what="its job has run")
        connection.execute(move, ["4713-01-01 BC"])
        until(lambda: effects.finished("Often") == 2, what="its job has run")
        assert worker.terminate() == 0
    ahead = "SELECT count(*) FROM magik_job_schedules WHERE next_run_at BETWEEN now() AND now() + interval '1 h'"
    assert count(connection, ahead) == 1
    for line in worker.stderr().splitlines():
        json.loads(line, parse_constant=no_json)


def no_json(word: str) -> None:
    """Python's reader would take NaN and Infinity."""
    raise AssertionError(f"{word} is no JSON")
