"""What a job leaves behind in its process, or in its thread, is no trouble of the next one's."""

from __future__ import annotations

import sys
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.orm import Session as OrmSession

from magik_sa import Job
from tests.jobs.neighbours import ClosesStderr, Tidy, TidyAlone, Untidy, Wordy, WritesToStreams
from tests.tools.effects import Effects
from tests.tools.proxy import Proxy
from tests.tools.schema import migrate
from tests.tools.server import RUN, Server
from tests.tools.sessions import terminate
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess, dsn_of

NEIGHBOURS = "tests.jobs.neighbours"


def add(engine: Engine, *jobs: Job) -> None:
    with OrmSession(engine) as session, session.begin():
        session.add_all(jobs)


def ask(url: str, query: str) -> list[Any]:
    with psycopg.connect(dsn_of(url), autocommit=True, client_encoding="utf8") as connection:
        return connection.execute(query.encode()).fetchall()


def test_what_a_job_sets_in_its_context_ends_with_it(database: str, engine: Engine, effects: Effects) -> None:
    add(engine, Untidy(priority=1), Tidy(priority=2))
    with WorkerProcess(database, NEIGHBOURS, concurrency=1):
        until(effects.count, 20, what="the second has run, on the same thread")
    assert [effect.note for effect in effects.rows()] == ["none 28"]


def test_a_job_that_closes_stderr_ends_nothing_but_the_log(database: str, engine: Engine, effects: Effects) -> None:
    add(engine, ClosesStderr(priority=1), Tidy(priority=2))
    with WorkerProcess(database, NEIGHBOURS, concurrency=1) as worker:
        until(effects.count, 20, what="the second has run")
        assert worker.terminate() == 0
    assert ask(database, "SELECT split_part(last_error, E'\\n', 1) FROM magik_jobs") == [("RuntimeError: closed",)]


def test_where_streams_were_closed_nothing_of_the_workers_takes_their_place(
    database: str, engine: Engine, effects: Effects
) -> None:
    """What a job writes there is neither a signal nor a word to the server."""
    add(engine, WritesToStreams(priority=1), Tidy(priority=2))
    line = ["sh", "-c", f"exec {sys.executable} -m magik_sa.worker {NEIGHBOURS} --concurrency 1 <&- >&- 2>&-"]
    with WorkerProcess(database, command=line) as worker:
        until(effects.count, 20, what="the second has run, in the same worker")
        until(lambda: not ask(database, "SELECT FROM magik_jobs"), what="both have ended well")
        worker.expect_alive()
        assert worker.terminate() == 0


def test_a_handler_that_raises_ends_nothing(database: str, engine: Engine, effects: Effects) -> None:
    """What it did not log stands on stderr as it is."""
    add(engine, Tidy())
    with WorkerProcess(database, NEIGHBOURS, concurrency=1, env={"REQUESTS_ONLY": "1"}) as worker:
        worker.wait_log(r"event=job_finished .* not_logged=AttributeError")
        assert worker.terminate() == 0
    assert effects.count() == 1


def test_no_encoding_of_the_environment_keeps_a_row_from_being_read(
    database: str, engine: Engine, effects: Effects
) -> None:
    add(engine, Tidy(said="caf\u00e9 \U0001f600"), Wordy())
    with WorkerProcess(database, NEIGHBOURS, concurrency=1, env={"PGCLIENTENCODING": "LATIN1"}) as worker:
        until(lambda: ask(database, "SELECT FROM magik_jobs WHERE expired_at IS NOT NULL"), what="one has failed")
        assert worker.terminate() == 0
    assert "connection_lost" not in worker.stderr()
    said = ask(database, "SELECT split_part(last_error, E'\\n', 1) FROM magik_jobs WHERE job_class = 'Wordy'")
    assert said == [("RuntimeError: caf\u00e9 \U0001f600",)]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_failure_is_recorded_in_any_encoding_of_the_database(server: Server, encoding: str) -> None:
    name = f"{RUN}_{encoding.lower()}"
    statement = sql.SQL("CREATE DATABASE {} ENCODING {} LOCALE 'C' TEMPLATE template0")
    server.execute(statement.format(sql.Identifier(name), encoding))
    try:
        server.give(name)
        expect_a_dead_letter(server.url(name))
    finally:
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def expect_a_dead_letter(url: str) -> None:
    """The application says itself in which encoding it speaks, which psycopg needs; the worker need not be told."""
    migrate(f"{url}?client_encoding=utf8")
    engine = create_engine(f"{url}?client_encoding=utf8")
    add(engine, Wordy())
    engine.dispose()
    with WorkerProcess(url, NEIGHBOURS, concurrency=1) as worker:
        until(lambda: ask(url, "SELECT FROM magik_jobs WHERE expired_at IS NOT NULL"), 20, what="it has failed")
        assert "unrecorded" not in worker.stderr()
    ((said,),) = ask(url, "SELECT split_part(last_error, E'\\n', 1) FROM magik_jobs")
    assert said in ("RuntimeError: caf\u00e9 \U0001f600", r"RuntimeError: caf\xe9 \U0001f600")


def test_no_body_runs_while_its_end_could_not_be_recorded(database: str, engine: Engine, effects: Effects) -> None:
    """The way of the jobs is cut, and that of the locks is not, as where one of them leads through a pooler."""
    url = make_url(database)
    assert url.host
    assert url.port
    with Proxy(url.host, url.port) as proxy:
        way = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        env = {"EFFECTS_URL": database}
        with WorkerProcess(way, NEIGHBOURS, locking_url=database, concurrency=2, env=env) as worker:
            worker.wait_ready()
            proxy.refuse()
            proxy.cut()
            add(engine, *(Tidy() for _ in range(200)))
            worker.wait_log(r"(?s)(event=performer_not_connected.*){6}")
            assert effects.count() == 0
            tries = worker.stderr().count("event=performer_not_connected")
            assert tries < 20, "200 jobs are due, and nobody hurries through them"
            proxy.accept()
            until(lambda: effects.finished() == 200, 30, what="all have run")
            assert worker.terminate() == 0
    assert effects.repeats() == []


def test_one_without_a_session_needs_the_way_of_the_jobs_only_to_fail(
    database: str, engine: Engine, effects: Effects
) -> None:
    """Its plain end goes the way of the locks; a thread that could not record a failure begins no more."""
    url = make_url(database)
    assert url.host
    assert url.port
    with Proxy(url.host, url.port) as proxy:
        way = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        env = {"EFFECTS_URL": database}
        with WorkerProcess(way, NEIGHBOURS, locking_url=database, concurrency=2, env=env) as worker:
            worker.wait_ready()
            proxy.refuse()
            proxy.cut()
            add(engine, TidyAlone())
            until(lambda: not ask(database, "SELECT FROM magik_jobs"), what="it has ended")
            add(engine, *(TidyAlone(fails=True) for _ in range(20)))
            worker.wait_log(r"(?s)(event=performer_not_connected.*){6}")
            assert effects.count() <= 3, "the first, and one for each thread"
            proxy.accept()
            until(lambda: len(ask(database, "SELECT FROM magik_jobs WHERE expired_at IS NOT NULL")) == 20, 40)
            assert worker.terminate() == 0
    assert len(effects.repeats()) <= 2


def test_no_body_runs_where_nothing_can_be_written(database: str, dsn: str, effects: Effects) -> None:
    """A session that began while the server was read only stays so: it is not used, and the next is another."""
    writing = "-cdefault_transaction_read_only=off"
    name = sql.Identifier(make_url(database).database or "")
    env = {"EFFECTS_URL": make_url(database).update_query_dict({"options": writing}).render_as_string(False)}
    with (
        WorkerProcess(database, NEIGHBOURS, concurrency=2, env=env) as worker,
        psycopg.connect(dsn, autocommit=True, options=writing) as app,
    ):
        worker.wait_ready()
        app.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
        terminate(dsn, f"{worker.app_name} performer")
        app.execute("INSERT INTO magik_jobs (job_class) SELECT 'Tidy' FROM generate_series(1, 20)")
        worker.wait_log(r"(?s)(event=performer_not_connected.*MAGIK_SERVER_READ_ONLY.*){4}")
        assert effects.count() == 0
        app.execute(sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name))
        until(lambda: effects.finished() == 20, 20, what="all have run")
        assert worker.terminate() == 0
        assert app.execute("SELECT FROM magik_jobs").rowcount == 0
