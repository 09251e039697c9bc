"""Each finding of the doctor: the condition is made, named, mended by what is printed, and gone."""

from __future__ import annotations

import re
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, make_url
from sqlalchemy.orm import Session

from magik_sa.doctor import Finding, Severity, vacuum
from tests.jobs.lasting import Lasting, LetGoInSession
from tests.tools import pooler
from tests.tools.cluster import Cluster
from tests.tools.effects import Effects
from tests.tools.examined import finding, run, snapshot, warned
from tests.tools.pooler import Pooler
from tests.tools.proxy import Proxy
from tests.tools.schema import migrate
from tests.tools.sessions import pids
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess, dsn_of

INSTANT = timedelta(milliseconds=1)
LASTING = "tests.jobs.lasting"


# ---- vacuum ---------------------------------------------------------------------------------------------------------


def test_an_old_transaction_is_named_until_it_ends(database: str, dsn: str) -> None:
    name = "oldest_transaction"
    assert finding(database, name).severity is Severity.OK
    with snapshot(dsn) as other:
        found = finding(database, name)
        measured = found.measured
        assert (found.severity, measured["pid"]) == (Severity.OK, other.info.backend_pid)
        assert (measured["application"], measured["state"]) == ("reporting", "idle in transaction")
        a_second = timedelta(seconds=1)
        until(lambda: finding(database, name, oldest_transaction=a_second).severity is Severity.WARNING)
        found = finding(database, name, oldest_transaction=INSTANT)
        assert found.severity is Severity.CRITICAL
        assert f"process {other.info.backend_pid} (reporting, " in found.said
        run(dsn, *found.sql)
        until(lambda: not pids(dsn, "reporting"), what="it has ended")
        gone = finding(database, name, oldest_transaction=INSTANT)
    assert (gone.severity, gone.measured["pid"]) == (Severity.OK, None)


def test_a_transaction_that_holds_nothing_back_is_not_named(database: str, dsn: str) -> None:
    with psycopg.connect(dsn) as other:
        other.execute("SELECT 1")
        assert finding(database, "oldest_transaction", oldest_transaction=INSTANT).severity is Severity.OK


def test_dead_tuples_are_named_until_they_are_cleaned_away(
    database: str, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(dsn, "ALTER TABLE magik_jobs SET (autovacuum_enabled = off)")
    rows = "INSERT INTO magik_jobs (job_class) SELECT 'Any' FROM generate_series(1, 12000)"
    run(dsn, "SET magik_sa.wake = off", rows)
    with snapshot(dsn) as other:
        run(dsn, "DELETE FROM magik_jobs")
        found = until(lambda: warned(database, "dead_tuples"), what="the server's statistics")
        assert found.measured["dead"] == 12_000
        assert found.measured["last_autovacuum_seconds"] is None
        run(dsn, *found.sql)
        assert finding(database, "dead_tuples").severity is Severity.WARNING, "while somebody looks at them"
        monkeypatch.setattr(vacuum, "LONG", 0.0)
        held = finding(database, "dead_tuples")
        assert f"of process {other.info.backend_pid} (reporting, " in (held.cause or "")
        assert held.sql == (), "a vacuum would clean nothing"
        monkeypatch.undo()
        holder = finding(database, "oldest_transaction", oldest_transaction=INSTANT)
    run(dsn, *holder.sql)
    until(lambda: finding(database, "oldest_transaction", oldest_transaction=INSTANT).severity is Severity.OK)
    run(dsn, *found.sql)
    assert until(lambda: not warned(database, "dead_tuples"))


# ---- room -----------------------------------------------------------------------------------------------------------


def test_a_lock_table_that_fills_up_is_named_with_who_fills_it() -> None:
    with Cluster(None, {"max_connections": 20, "max_locks_per_transaction": 10}) as cluster:
        migrate(cluster.url())
        assert finding(cluster.url(), "locks").measured["room"] == 200
        with psycopg.connect(cluster.dsn(), autocommit=True, application_name="greedy") as other:
            for taken, severity in ((110, Severity.WARNING), (60, Severity.CRITICAL)):
                other.execute("SELECT pg_advisory_lock((random() * 1e9)::bigint) FROM generate_series(1, %s)", [taken])
                found = finding(cluster.url(), "locks")
                assert found.severity is severity
                assert f"Process {other.info.backend_pid} (greedy) holds " in found.remedy
        until(lambda: not pids(cluster.dsn(), "greedy"), what="it has ended")
        assert finding(cluster.url(), "locks").severity is Severity.OK


def test_more_workers_than_the_lock_table_has_room_for_are_named() -> None:
    with Cluster(None, {"max_connections": 25, "max_locks_per_transaction": 10}) as cluster:
        migrate(cluster.url())
        with WorkerProcess(cluster.url(), LASTING, concurrency=5, queue=[f"q{n}" for n in range(120)]) as worker:
            worker.wait_ready()
            found = until(lambda: warned(cluster.url(), "locks"))
            assert found.measured["workers_may_hold"] == 2 * 5 + 120
            assert "max_locks_per_transaction" in found.remedy
        cluster.restart(max_locks_per_transaction=64)
        with WorkerProcess(cluster.url(), LASTING, concurrency=5, queue=[f"q{n}" for n in range(120)]) as worker:
            worker.wait_ready()
            assert finding(cluster.url(), "locks").severity is Severity.OK


SESSIONS = """
import os

from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker


def on(**pool):
    return sessionmaker(create_engine(os.environ["MAGIK_DATABASE_URL"], **pool))


surplus, unlimited, mended = on(pool_size=2, max_overflow=3), on(max_overflow=-1), on(pool_size=2, max_overflow=0)
"""


def test_a_pool_that_is_larger_than_a_worker_needs_is_named_until_it_is_not(database: str, tmp_path: Path) -> None:
    (tmp_path / "pools.py").write_text(SESSIONS)

    def worker(session: str) -> WorkerProcess:
        return WorkerProcess(database, LASTING, concurrency=2, path=tmp_path, session=session)

    with ExitStack() as stack:
        larger, unlimited = [stack.enter_context(worker(f"pools:{name}")) for name in ("surplus", "unlimited")]
        larger.wait_ready()
        unlimited.wait_ready()
        found = finding(database, "pools")
        pools = {each["name"].split(":")[1]: (each["threads"], each["pool"]) for each in found.measured["workers"]}
        assert pools == {str(larger.pid): (2, 5), str(unlimited.pid): (2, None)}
        assert found.severity is Severity.NOTE
        assert re.fullmatch(rf"the pool of the worker \S+:{larger.pid} gives 5 connections, .* for 2", found.said)
        assert re.search(rf"\(pool_size=2, max_overflow=0 for \S+:{larger.pid}\)", found.remedy)
        assert larger.terminate() == 0
        stack.enter_context(worker("pools:mended")).wait_ready()
        mended = finding(database, "pools")
        assert (mended.severity, len(mended.measured["workers"])) == (Severity.OK, 2)


# ---- the way --------------------------------------------------------------------------------------------------------


@pooler.needed
def test_a_pooler_that_lends_sessions_is_named_until_the_locks_go_round_it(database: str) -> None:
    with Pooler(database, "transaction") as between:
        found = finding(between.url, "pooler")
        assert (found.severity, found.measured) == (Severity.CRITICAL, {"sessions_last": False})
        assert "--locking-url" in found.remedy
        assert finding(between.url, "pooler", database).severity is Severity.OK
        with psycopg.connect(dsn_of(between.url)) as lent:
            assert lent.execute("SHOW client_connection_check_interval").fetchone() == ("0",), "nothing is left behind"
    with Pooler(database, "session") as between:
        assert finding(between.url, "pooler").severity is Severity.OK
        assert finding(between.url, "silence").severity is Severity.NOTE


def test_what_stands_between_a_worker_and_the_server_is_told_of(database: str) -> None:
    url = make_url(database)
    direct = finding(database, "silence")
    assert (direct.severity, direct.measured["seconds"]) == (Severity.OK, 11)
    with Proxy(url.host or "", url.port or 0) as proxy:
        proxied = url.set(port=proxy.port).render_as_string(hide_password=False)
        found = finding(proxied, "silence")
        assert (found.severity, found.measured["direct"]) == (Severity.NOTE, False)
        assert "--locking-url" in found.remedy
        assert finding(proxied, "silence", database).severity is Severity.OK


def test_a_local_socket_is_never_silent() -> None:
    with Cluster() as cluster:
        migrate(cluster.url())
        local = f"postgresql+psycopg://{cluster.user}@/postgres?host={cluster.folder}&port={cluster.port}"
        assert finding(local, "silence").measured == {"seconds": 0, "direct": True}


# ---- timeouts, rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["idle_in_transaction_session_timeout", "statement_timeout"])
def test_a_timeout_that_is_not_set_is_noted_until_it_is(database: str, dsn: str, name: str) -> None:
    found = finding(database, name)
    assert (found.severity, found.measured) == (Severity.NOTE, {"milliseconds": 0})
    role = make_url(database).username
    try:
        run(dsn, *found.sql)
        assert finding(database, name).severity is Severity.OK
    finally:
        run(dsn, f'ALTER ROLE "{role}" RESET {name}')


def test_who_blocks_the_row_of_a_job_is_named_until_it_ends(
    database: str, dsn: str, engine: Engine, effects: Effects
) -> None:
    with Session(engine) as session, session.begin():
        session.add_all([LetGoInSession(), *[Lasting(queue="others") for _ in range(20)]])
    with ExitStack() as stack:
        blocking = stack.enter_context(closing(psycopg.connect(dsn, application_name="import script")))
        blocking.execute("SELECT pg_advisory_lock(7, 7)")
        blocking.commit()
        worker = stack.enter_context(WorkerProcess(database, LASTING, concurrency=2, queue=["default", "others"]))
        worker.wait_ready()
        until(lambda: effects.count("LetGoInSession"))
        blocking.execute("SELECT FROM magik_jobs WHERE queue = 'default' FOR UPDATE")
        blocking.execute("SELECT pg_advisory_unlock(7, 7)")
        until(lambda: effects.finished() == 21, 20, what="all have run, and one cannot end")
        (waiting,) = until(lambda: pids(dsn, "%performer", query="SELECT magik_jobs_ended(%"))
        found = until(lambda: blocked(database))
        (by,) = found.measured["blocking"]
        assert (by["pid"], by["application"], by["waiting"]) == (blocking.info.backend_pid, "import script", waiting)
        assert f"process {by['pid']} (import script, " in found.said
        assert finding(database, "blocked_rows", blocked=timedelta(hours=1)).severity is Severity.OK
        run(dsn, *found.sql)
        until(lambda: count(dsn) == 0, what="the job has ended")
        assert finding(database, "blocked_rows", blocked=INSTANT).severity is Severity.OK
        assert worker.terminate() == 0


def blocked(database: str) -> Finding | None:
    found = finding(database, "blocked_rows", blocked=INSTANT)
    return found if found.severity is Severity.WARNING else None


def count(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        return int(connection.execute("SELECT count(*) FROM magik_jobs").fetchall()[0][0])


@pytest.mark.parametrize("table", ["magik_jobs", "magik_job_schedules"])
def test_who_locks_a_table_is_named(database: str, dsn: str, table: str) -> None:
    with psycopg.connect(dsn, application_name="ddl") as locking, closing(psycopg.connect(dsn)) as other:
        locking.execute(f"LOCK TABLE {table}".encode())
        other.pgconn.send_query(f"SELECT count(*) FROM {table}".encode())
        found = until(lambda: blocked(database))
        assert [each["pid"] for each in found.measured["blocking"]] == [locking.info.backend_pid]
