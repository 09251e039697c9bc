"""A server with room for few connections: who has them is said, and at the limit everybody names max_connections."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tests.jobs.cutting import AfterCut
from tests.tools.cluster import Cluster
from tests.tools.counting import LOOKING, counting
from tests.tools.program import answer, magik
from tests.tools.schema import migrate
from tests.tools.sessions import pids, terminate
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

CUTTING = "tests.jobs.cutting"


@pytest.fixture(scope="module")
def small() -> Iterator[Cluster]:
    """20 connections, of which the server keeps three for its superuser."""
    with Cluster(None, {"max_connections": 20}) as cluster:
        migrate(cluster.url())
        cluster.execute("CREATE TABLE notes (what text)")
        yield cluster


def registered(small: Cluster) -> set[int]:
    """The sessions of the workers' rows."""
    return {pid for (pid,) in small.execute("SELECT backend_pid FROM magik_workers")}


def test_a_worker_has_no_more_connections_than_it_says_and_doctor_shows_the_sum(small: Cluster) -> None:
    dsn, gone = small.dsn(), set[int]()
    engine = create_engine(small.url(), connect_args={"application_name": LOOKING})
    with closing(engine.raw_connection()), counting(dsn, "shop") as most, ExitStack() as stack:
        worker = stack.enter_context(WorkerProcess(small.url(), CUTTING, concurrency=5, app_name="shop"))
        worker.wait_ready()
        found = re.search(r"connections=(\d+)", worker.stderr())
        assert found is not None
        until(lambda: len(pids(dsn, "shop%")) == int(found[1]), what="those that looked at the server are gone")
        (sum_,) = [each for each in answer(small.url(), "doctor")["findings"] if each["name"] == "connections"]
        for part in ("locker", "performer", "%"):
            with Session(engine) as session, session.begin():
                session.add_all([AfterCut() for _ in range(50)])
            until(lambda: small.execute("SELECT count(*) FROM magik_jobs") == [(0,)], 20, what="all are done")
            gone.update(terminate(dsn, f"shop {part}"))
            until(lambda: registered(small) and not registered(small) & gone, what="a locker again, and its row alone")
        assert answer(small.url(), "jobs", "status")["workers"][0]["alive"] is True
        assert worker.terminate() == 0
    engine.dispose()
    assert most["shop"] == int(found[1])
    assert most["magik_sa status"] <= 1
    assert most["magik_sa doctor"] <= 3
    measured = sum_["measured"]
    assert (measured["max_connections"], measured["room"]) == (20, 17)
    assert (measured["lockers"], measured["performers"]) == (1, int(found[1]) - 1)
    assert measured["sessions"] == int(found[1]) + measured["others"]
    assert measured["by_application"]["magik_sa doctor"] == 1


def test_near_the_limit_doctor_warns_and_at_the_limit_all_name_max_connections(small: Cluster) -> None:
    small.execute("DROP ROLE IF EXISTS app; CREATE ROLE app LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO app")
    url = small.url(user="app")
    until(lambda: not pids(small.dsn()), what="those who were here before are gone")
    with ExitStack() as stack:
        taken = [psycopg.connect(small.dsn(user="app"), application_name="web") for _ in range(13)]
        for each in taken:
            stack.callback(each.close)
        (found,) = [each for each in answer(url, "doctor", code=1)["findings"] if each["name"] == "connections"]
        assert (found["severity"], found["measured"]["by_application"]["web"]) == ("warning", 13)
        assert "max_connections" in found["remedy"]
        assert "(most are of web)" in found["remedy"]
        until(lambda: len(pids(small.dsn())) == len(taken), what="the doctor's own sessions are gone")
        for _ in range(4):
            stack.callback(psycopg.connect(small.dsn(user="app")).close)
        for command in (["jobs", "status"], ["doctor"]):
            said = magik(url, *command, code=2)
            assert said.startswith("MAGIK_CONNECTION_BUDGET: ")
            assert "max_connections" in said
        with WorkerProcess(url, CUTTING, concurrency=5) as worker:
            assert worker.wait() == 2
        assert "MAGIK_CONNECTION_BUDGET" in worker.stderr()
        assert "max_connections" in worker.stderr()
    until(lambda: not pids(small.dsn()), what="they have been closed")
    (found,) = [each for each in answer(url, "doctor")["findings"] if each["name"] == "connections"]
    assert found["severity"] == "ok"


def test_a_worker_of_several_processes_needs_the_connections_of_all(small: Cluster) -> None:
    with WorkerProcess(small.url(), CUTTING, concurrency=5, processes=3) as worker:
        assert worker.wait() == 2
    (line,) = worker.stderr().splitlines()
    assert line.startswith("MAGIK_CONNECTION_BUDGET: The 3 processes of the worker need 18 connections, ")
    assert "leaves 17." in line
