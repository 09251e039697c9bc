"""A worker's maintenance: one worker at a time, beside its jobs and ticks, and nobody's session that is not idle."""

from __future__ import annotations

import re
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import sessionmaker

from tests.controls import control
from tests.jobs import kept
from tests.tools import roles
from tests.tools.program import answer, magik
from tests.tools.rows import DAY, fill, one, rows
from tests.tools.server import Server
from tests.tools.sessions import pids
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess, dsn_of

MODULE = "tests.jobs.kept"
ADVANCED = "UPDATE magik_job_schedules SET next_run_at = now() WHERE name LIKE 'magik_sa.maintenance:%'"

# A DELETE of finished rows is held up for as long as the test has the lock. It waits for no lock: prune has a limit.
HELD = """
CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  WHILE EXISTS (SELECT FROM gone WHERE finished_at IS NOT NULL) AND NOT pg_try_advisory_xact_lock_shared(42) LOOP
    PERFORM pg_sleep(0.02);
  END LOOP;
  RETURN NULL;
END $$;
CREATE TRIGGER held AFTER DELETE ON magik_jobs REFERENCING OLD TABLE AS gone
   FOR EACH STATEMENT EXECUTE FUNCTION held()"""


@pytest.fixture
def held(app: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """Rows to prune, and a prune that will wait in the middle of it."""
    fill(app, 1500, DAY)
    app.execute(HELD.encode())
    app.execute("SELECT pg_advisory_lock(42)")
    return app


def at_it(dsn: str) -> list[int]:
    """The sessions in which a prune waits in the middle."""
    return pids(dsn, "%maintenance", query="%DELETE FROM magik_jobs%")


def looked(app: psycopg.Connection[Any], worker: WorkerProcess) -> bool:
    """Whether its maintenance has found something due, and asked for the lock."""
    query = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{worker.app_name} maintenance'"
    return bool(one(app, f"{query} AND state = 'idle' AND query_start > backend_start + interval '0.02 s'"))


def test_of_three_workers_one_is_at_it_and_where_it_is_killed_another_goes_on(
    database: str, dsn: str, held: psycopg.Connection[Any]
) -> None:
    with ExitStack() as stack:
        first, *others = [WorkerProcess(database, MODULE, concurrency=1, maintenance=True) for _ in range(3)]
        stack.enter_context(first).wait_ready()
        until(lambda: at_it(dsn))
        for worker in others:
            stack.enter_context(worker)
        for worker in others:
            worker.wait_ready()
            until(lambda worker=worker: looked(held, worker))  # type: ignore[misc]
        (busy,) = at_it(dsn)
        first.kill()
        now_at_it = until(lambda: [pid for pid in at_it(dsn) if pid != busy], 15)  # whose locks go before its session
        assert len(now_at_it) == 1
        held.execute("SELECT pg_advisory_unlock(42)")
        until(lambda: not rows(held))
        until(lambda: one(held, "SELECT count(*) = 2 FROM magik_job_schedules WHERE last_run_at IS NOT NULL"))


def test_without_the_lock_two_are_at_it(database: str, dsn: str, held: psycopg.Connection[Any]) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            worker = WorkerProcess(database, MODULE, maintenance=True, program=control("without_the_maintenance_lock"))
            stack.enter_context(worker)
        until(lambda: len(at_it(dsn)) == 2, 20)


def test_it_holds_up_neither_ticks_nor_the_end(database: str, dsn: str, held: psycopg.Connection[Any]) -> None:
    with WorkerProcess(database, MODULE, maintenance=True, env={"TICKING": "yes"}) as worker:
        worker.wait_ready()
        until(lambda: at_it(dsn))
        ticks = "SELECT last_run_at FROM magik_job_schedules WHERE name = 'KeptTicking'"
        first = until(lambda: one(held, ticks))
        until(lambda: one(held, ticks) > first)
        assert at_it(dsn)
        assert [each["name"] for each in answer(database, "jobs", "status")["schedules"]] == ["KeptTicking"]
        assert worker.terminate(timeout=5) == 0
        assert "abandoned" not in worker.stderr()
        assert "Traceback" not in worker.stderr()
    until(lambda: not at_it(dsn))  # the server notices within a second
    assert rows(held, f"job_class = '{DAY}'") == 1500


def test_the_tables_are_cleaned(database: str, app: psycopg.Connection[Any]) -> None:
    cleaned = "SELECT count(last_vacuum) = 2 FROM pg_stat_user_tables WHERE relname IN ('magik_jobs', 'magik_claims')"
    assert not one(app, cleaned)
    with WorkerProcess(database, MODULE, maintenance=True) as worker:
        worker.wait_log("event=vacuumed")
        until(lambda: one(app, cleaned))
        connections = re.search(r"connections=(\d+)", worker.wait_ready().stderr())
        assert connections
        assert int(connections[1]) == 12


def test_what_a_role_may_not_do_is_said_once_and_the_rest_is_done() -> None:
    with roles.server() as cluster, closing(psycopg.connect(cluster.dsn("shop"), autocommit=True)) as app:
        app.execute("SET search_path = magik")
        with WorkerProcess(roles.url(cluster, roles.WORKER), MODULE, maintenance=True) as worker:
            worker.wait_log("event=maintenance_failed duty=vacuum error=.*magik_jobs.* needs=.*the owner")
            for _ in range(2):
                fill(app, 3, DAY)
                app.execute(ADVANCED.encode())
                until(lambda: not rows(app))
                until(lambda: not one(app, "SELECT count(*) FROM magik_job_schedules WHERE next_run_at < now()"))
            assert worker.stderr().count("maintenance_failed") == 1


def test_transactions_that_idle_are_ended_and_no_others(
    database: str, dsn: str, app: psycopg.Connection[Any], server: Server, Session: sessionmaker[OrmSession]
) -> None:
    """The job that has its transaction open runs on an engine of the application's own."""
    with Session.begin() as session:
        session.add(kept.Pondering())
    with ExitStack() as stack:
        places = {"idle": dsn, "busy": dsn, "elsewhere": server.dsn()}
        idle, busy, elsewhere = (
            stack.enter_context(closing(psycopg.connect(place, application_name=name)))
            for name, place in places.items()
        )
        words = ["--maintenance", "--end-idle-transactions", "200ms", "--session", f"{MODULE}:sessions"]
        worker = WorkerProcess(database, MODULE, *words)
        stack.enter_context(worker).wait_ready()
        ponders = "SELECT clock_timestamp() - state_change > interval '0.3 s' FROM pg_stat_activity WHERE pid = "
        (pondering,) = until(lambda: pids(dsn, "shop performer", query="SELECT 1"))
        done = "SELECT count(*) = 3 FROM magik_job_schedules WHERE last_run_at IS NOT NULL AND next_run_at > now()"
        until(lambda: one(app, done), what="each duty was done once, and nobody was idle yet")
        for connection in (idle, elsewhere):
            connection.execute("SELECT 1")
        busy.pgconn.send_query(b"BEGIN; SELECT pg_sleep(60)")
        until(lambda: one(app, f"{ponders}{pondering}") and one(app, f"{ponders}{idle.info.backend_pid}"))
        app.execute(ADVANCED.encode())
        worker.wait_log("event=idle_transaction_ended .*application=idle")
        until(lambda: not pids(dsn, "idle"))
        elsewhere.execute("SELECT 1")
        assert pids(dsn, "busy", query="%pg_sleep%")
        app.execute("CREATE TABLE go ()")
        worker.wait_log("event=job_finished .*job_class=Pondering .*outcome=finished")
        assert worker.stderr().count("idle_transaction_ended") == 1


def test_an_age_of_idle_transactions_without_maintenance_is_refused(database: str) -> None:
    line = magik(database, "worker", MODULE, "--end-idle-transactions", "10m", code=2)
    assert line.startswith("MAGIK_SETTING_INVALID: end-idle-transactions='10m': it is a part of maintenance")
    assert dsn_of(database) not in line
