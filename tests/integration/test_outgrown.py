"""The signals of a straining server: each made by real work, seen, and not seen where there is none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from magik_sa.doctor import Finding, Severity
from magik_sa.doctor.outgrown import Strain, outgrown
from tests.jobs.lasting import Lasting
from tests.tools.cluster import Cluster
from tests.tools.examined import run, snapshot, subject
from tests.tools.schema import migrate
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

ROWS = "INSERT INTO magik_jobs (job_class) SELECT 'Any' FROM generate_series(1, {})"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(None, {"autovacuum_naptime": "1s", "autovacuum_max_workers": 1}) as cluster:
        migrate(cluster.url())
        cluster.execute("CREATE EXTENSION pg_stat_statements")
        yield cluster


def signal(database: str, name: str, seconds: float = 0.5, **strain: float) -> Finding:
    """One of all signals."""
    with subject(database) as looked_at:
        found = outgrown(looked_at, seconds, Strain(**strain))  # type: ignore[arg-type]
    (one,) = [each for each in found if each.name == name]
    return one


def seen(database: str, name: str, seconds: float = 0.5, **strain: float) -> Finding | None:
    found = signal(database, name, seconds, **strain)
    return found if found.severity is Severity.WARNING else None


@contextmanager
def busy(dsn: str, statement: str, sessions: int = 1) -> Iterator[None]:
    """So many sessions repeat a statement meanwhile."""
    stop = threading.Event()

    def work(n: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.is_set():
                connection.execute(statement.format(n=n).encode())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(sessions)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_dead_rows_that_stay_in_spite_of_autovacuum_are_a_signal(cluster: Cluster) -> None:
    url, dsn = cluster.url(), cluster.dsn()
    run(dsn, "SET magik_sa.wake = off", ROWS.format(12_000))
    with snapshot(dsn):
        run(dsn, "DELETE FROM magik_jobs")
        found = until(lambda: seen(url, "dead_share", 0.0), 20, what="autovacuum has come")
        assert found.measured["autovacuum_in_time"] is True
        assert found.measured["share"] >= 0.2
    until(lambda: not seen(url, "dead_share", 0.0), 20, what="autovacuum has cleaned")


def test_the_share_of_the_jobs_in_the_wal_is_measured(cluster: Cluster) -> None:
    url, dsn = cluster.url(), cluster.dsn()
    run(dsn, "CREATE TABLE IF NOT EXISTS ledger (n int)")
    with busy(
        dsn, "SET magik_sa.wake = off; INSERT INTO magik_jobs (job_class) SELECT 'Any' FROM generate_series(1, 500)"
    ):
        until(lambda: most(url), what="most of the WAL is that of the jobs")
    run(dsn, "TRUNCATE magik_jobs")
    with busy(dsn, "INSERT INTO ledger SELECT generate_series(1, 5000)"):
        until(lambda: fallen(url), what="others write far more than the jobs")


def most(url: str) -> bool:
    found = seen(url, "wal_share", wal_rate=1_000)
    return found is not None and found.measured["share"] > 0.5


def fallen(url: str) -> bool:
    """And much in all."""
    found = signal(url, "wal_share", wal_rate=1_000)
    many = found.measured.get("bytes_per_second", 0) > 100_000
    return many and found.severity is Severity.OK and found.measured["share"] < 0.1


def test_without_pg_stat_statements_the_share_is_unknown(database: str) -> None:
    found = signal(database, "wal_share", 0.0)
    assert (found.severity, found.measured) == (Severity.UNKNOWN, {})
    assert "pg_stat_statements is not installed" in found.said


def test_a_role_that_does_not_see_what_others_wait_for_is_not_told_that_nobody_does(cluster: Cluster) -> None:
    observer = cluster.url(user="observer")
    tables = "magik_jobs, magik_claims, magik_workers, magik_queues, magik_job_schedules, magik_schema"
    cluster.execute(f"CREATE ROLE observer LOGIN; GRANT SELECT ON {tables} TO observer")
    with psycopg.connect(cluster.dsn(), application_name="other"):
        for name in ("multixact_waits", "maintenance", "wal_share"):
            assert signal(observer, name, 0.0).severity is Severity.UNKNOWN
        cluster.execute("GRANT pg_read_all_stats TO observer")
        assert signal(observer, "multixact_waits", 0.0).severity is Severity.OK


SHARED = """
DO $$ BEGIN
  PERFORM FROM shared FOR KEY SHARE;
  FOR i IN 1..200 LOOP
    BEGIN UPDATE shared SET n = n + 1 WHERE id = {n} * 1000 + i; EXCEPTION WHEN division_by_zero THEN NULL; END;
  END LOOP;
END $$"""


def test_sessions_that_wait_for_the_ids_of_shared_row_locks_are_seen(cluster: Cluster) -> None:
    url, dsn = cluster.url(), cluster.dsn()
    assert not seen(url, "multixact_waits", 0.0)
    run(dsn, "CREATE TABLE shared (id int PRIMARY KEY, n int)")
    run(dsn, "INSERT INTO shared SELECT s * 1000 + i, 0 FROM generate_series(0, 15) s, generate_series(1, 200) i")
    with busy(dsn, SHARED, sessions=16):
        found = until(lambda: seen(url, "multixact_waits", 3.0), 20)
    assert found.measured["seen"] <= found.measured["looks"]
    assert not seen(url, "multixact_waits", 0.0)


def test_a_cleaning_that_competes_with_queries_for_the_disk_is_seen(cluster: Cluster) -> None:
    url, dsn = cluster.url(), cluster.dsn()
    run(dsn, "SET magik_sa.wake = off", ROWS.format(20_000), "DELETE FROM magik_jobs")
    sorted_rows = "SELECT md5(n::text) FROM generate_series(1, 200000) n ORDER BY 1"
    spills = f"SET work_mem = '64kB'; SELECT count(*) FROM ({sorted_rows} OFFSET 0) t"
    with ExitStack() as stack:
        vacuum = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        vacuum.execute("SET vacuum_cost_delay = 100")
        vacuum.execute("SET vacuum_cost_limit = 1")
        vacuum.pgconn.send_query(b"VACUUM magik_jobs")
        stack.enter_context(busy(dsn, spills, sessions=2))
        found = until(lambda: seen(url, "maintenance", 2.0, maintenance=0.01), 30)
        assert found.measured["cleaning"] >= found.measured["seen"] > 0
        vacuum.cancel_safe()
        while vacuum.pgconn.get_result():
            pass
    assert not seen(url, "maintenance", 0.0)


def test_a_queue_that_grows_older_and_not_longer_is_seen_until_it_is_worked(
    database: str, engine: Engine, dsn: str
) -> None:
    with Session(engine) as session, session.begin():
        session.add_all(Lasting() for _ in range(30))
    assert not seen(database, "oldest_queued"), "they have only just come"
    run(dsn, "UPDATE magik_jobs SET run_at = now() - interval '1 min'")
    found = until(lambda: seen(database, "oldest_queued"))
    (queue,) = found.measured["rising"]
    assert (queue["queue"], queue["ready"]) == ("default", 30)
    assert queue["older"] >= 0.8 * found.measured["seconds"] - 0.1
    with WorkerProcess(database, "tests.jobs.lasting", concurrency=2) as worker:
        worker.wait_ready()
        until(lambda: not seen(database, "oldest_queued", 0.1))
