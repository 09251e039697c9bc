"""Passwords and sensitive arguments are in no log, no row of a failure, no answer to an operator, no command line."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, make_url
from sqlalchemy.orm import Session as OrmSession

from tests.jobs.secretive import CARD, Pays
from tests.tools.program import run
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

TABLES = """
CREATE TABLE cards (card text PRIMARY KEY);
CREATE FUNCTION tell(card text) RETURNS void LANGUAGE plpgsql AS
  $$ BEGIN EXECUTE 'INSERT INTO cards VALUES (''' || card || '''), (''' || card || ''')'; END $$;
ALTER TABLE magik_jobs ADD CONSTRAINT allowed CHECK (queue <> 'forbidden')"""

# How each job fails, and what its row says of it, which is enough to know why.
SAID = {
    "repeats": 'duplicate key value violates unique constraint "cards_pkey"',
    "breaks_a_check": 'new row for relation "magik_jobs" violates check constraint "allowed"',
    "gives_no_number": 'invalid input syntax for type integer: "…"',
    "gives_no_number_in_sql": 'column "nothing" does not exist',
    "is_told_by_a_function": 'duplicate key value violates unique constraint "cards_pkey"',
    "goes_on_after_a_failed_flush": "This Session's transaction has been rolled back",
    "asks_the_driver": 'duplicate key value violates unique constraint "cards_pkey"',
}


def test_a_sensitive_argument_is_nowhere_but_in_its_row(database: str, engine: Engine, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLES)
        with OrmSession(engine) as session, session.begin():
            session.add_all([Pays(how=how, card=CARD) for how in SAID])
        with WorkerProcess(database, "tests.jobs.secretive", concurrency=1) as worker:
            query = "SELECT args ->> 'how', last_error FROM magik_jobs WHERE expired_at IS NOT NULL"
            worker.wait_ready()
            until(lambda: len(connection.execute(query).fetchall()) == len(SAID), what="all have failed")
            assert worker.terminate() == 0
        failures: dict[str, str] = dict(connection.execute(query).fetchall())
    for how, said in SAID.items():
        assert said in failures[how]
        assert CARD not in failures[how]
        assert "[parameters" not in failures[how]
        assert "tests/jobs/secretive.py" in failures[how]
    assert "[SQL: INSERT INTO cards (card) VALUES (" in failures["repeats"]
    events = [line for line in worker.stderr().splitlines() if "event=" in line]
    assert CARD not in "\n".join(events)
    assert sum("event=job_expired" in line for line in events) == len(SAID)
    assert not re.search("^event=forged", worker.stderr(), re.MULTILINE)


def test_a_failure_that_cannot_be_recorded_tells_no_arguments(database: str, engine: Engine, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE magik_jobs ADD CONSTRAINT perfect CHECK (error_count = 0)")
        with OrmSession(engine) as session, session.begin():
            session.add(Pays(how="nothing of the kind", card=CARD))
        with WorkerProcess(database, "tests.jobs.secretive", concurrency=1) as worker:
            line = worker.wait_ready().wait_log("event=outcome_unrecorded .*").group()
            assert worker.terminate() == 0
    assert 'violates check constraint \\"perfect\\"' in line
    assert CARD not in worker.stderr()


def test_a_password_is_in_no_log_and_no_command_line(database: str) -> None:
    """Given in the environment, as a word of the URL's query or beside it."""
    url = make_url(database)
    plain = url.set(password=None)
    spelt = {
        "in the query": plain.update_query_dict({"password": url.password or ""}).render_as_string(),
        "in the environment": plain.render_as_string(),
    }
    for way, given in spelt.items():
        env = {"PGPASSWORD": url.password or ""} if way == "in the environment" else {}
        with WorkerProcess(given, "tests.jobs.placed", env=env, fresh=True) as worker:
            worker.wait_log("event=ready")
            line = Path(f"/proc/{worker.pid}/cmdline").read_bytes()
            assert worker.terminate() == 0
        assert url.password
        assert url.password not in worker.stderr() + worker.stdout() + line.decode()


@pytest.mark.parametrize("command", [["jobs", "status"], ["doctor"], ["migrate"], ["worker", "tests.jobs.placed"]])
def test_a_password_is_in_no_refusal(command: list[str]) -> None:
    url = "postgresql://u@127.0.0.1:1/x?password=hunter2&sslpassword=hunter2"
    code, out, err = run(url, *command)
    assert code == 2
    assert err.startswith("MAGIK_DATABASE_UNREACHABLE: postgresql+psycopg://u:***@127.0.0.1:1/x")
    assert "hunter2" not in out + err
