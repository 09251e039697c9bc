"""The examples for frameworks: requests that enqueue, and a worker process that performs.

The applications read their database's URL when they are imported, so each runs in an interpreter of its own.
"""

from __future__ import annotations

import sys
from textwrap import dedent
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, text

from tests.tools.asking import told
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess, environment

TABLE = "CREATE TABLE {}_orders (number int PRIMARY KEY, receipts int NOT NULL DEFAULT 0)"


def play(database: str, program: str, *arguments: str) -> str:
    """Run a program to its end; what it printed."""
    command = ["-c", dedent(program)] if "\n" in program else ["-m", program, *arguments]
    return told([sys.executable, *command], env=environment(database, None, {}))


def receipts(dsn: str, example: str) -> dict[int, int]:
    """How many receipts each order had."""
    with psycopg.connect(dsn) as connection:
        return dict(connection.execute(f"SELECT number, receipts FROM {example}_orders".encode()).fetchall())


def jobs(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM magik_jobs").fetchall()
    return int(count)


def tables(engine: Engine, *examples: str) -> None:
    with engine.begin() as connection:
        for example in examples:
            connection.execute(text(TABLE.format(example)))


def drained(database: str, dsn: str, example: str, **options: Any) -> None:
    """A worker does what is there, and ends well."""
    with WorkerProcess(database, f"examples.{example}_app", concurrency=3, **options) as worker:
        worker.wait_ready()
        until(lambda: not jobs(dsn), what="all jobs are done")
        assert worker.terminate() == 0, worker.stderr()


FASTAPI = """
from fastapi.testclient import TestClient
from examples.fastapi_app import app
with TestClient(app, raise_server_exceptions=False) as client:
    for path in ("/orders/1", "/orders/2", "/async/orders/3", "/async/orders/4"):
        answer = client.post(path)
        assert (answer.status_code, answer.json()) == (200, {"is_repeat": False}), answer.text
    for path in ("/orders/1", "/async/orders/3"):
        assert client.post(path).status_code == 500  # the order is there already: nothing was committed
    from examples.fastapi_app import Order, Sessions
    with Sessions.begin() as session:
        session.delete(session.get(Order, 1))
    assert client.post("/orders/1").json() == {"is_repeat": True}
"""


@pytest.mark.filterwarnings("default")
def test_fastapi(database: str, dsn: str, engine: Engine) -> None:
    tables(engine, "fastapi")
    play(database, FASTAPI)
    assert jobs(dsn) == 4
    drained(database, dsn, "fastapi", session="examples.fastapi_app:Sessions")
    assert receipts(dsn, "fastapi") == dict.fromkeys(range(1, 5), 1)


FLASK = """
from examples.flask_app import app
client = app.test_client()
for number in (1, 2, 3):
    assert client.post(f"/orders/{number}").status_code == 200
assert client.post("/orders/1").status_code == 500
"""


def test_flask(database: str, dsn: str, engine: Engine) -> None:
    tables(engine, "flask")
    play(database, FLASK)
    assert jobs(dsn) == 3
    drained(database, dsn, "flask")
    assert receipts(dsn, "flask") == {1: 1, 2: 1, 3: 1}


def test_the_session_of_flask_is_not_taken_for_one_of_threads(database: str) -> None:
    with WorkerProcess(database, "examples.flask_app", session="examples.flask_app:db.session") as worker:
        assert worker.wait() == 2
    assert "MAGIK_SESSION_NOT_THREAD_KEYED" in worker.stderr()
    assert "docs/frameworks.md" in worker.stderr()


def test_sqlmodel(database: str, dsn: str, engine: Engine) -> None:
    tables(engine, "sqlmodel")
    play(database, "examples.sqlmodel_app", "1")
    play(database, "examples.sqlmodel_app", "2")
    drained(database, dsn, "sqlmodel", session="examples.sqlmodel_app:Sessions")
    assert receipts(dsn, "sqlmodel") == {1: 1, 2: 1}


def test_asyncio(database: str, dsn: str, engine: Engine) -> None:
    tables(engine, "async")
    play(database, "examples.async_app", "1", "2", "3")
    assert jobs(dsn) == 3
    drained(database, dsn, "async")
    assert receipts(dsn, "async") == {1: 1, 2: 1, 3: 1}


ASYNCHRONOUS = "examples.fastapi_app:AsyncSessions"


def test_an_asynchronous_sessionmaker_is_refused_with_what_to_do_instead(database: str) -> None:
    with WorkerProcess(database, "examples.fastapi_app", session=ASYNCHRONOUS) as worker:
        assert worker.wait() == 2
    assert "MAGIK_SESSION_INVALID" in worker.stderr()
    assert "leave --session out and give --database-url with postgresql+psycopg://" in worker.stderr()
