"""What a claim reads depends on the jobs that are due, whatever else is in the table, and whatever the planner knew.

Measured in what the server read: rows, dead ones included, and pages of the claim's index, because rows that it passes
inside of the index are not counted by it. Never in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from uuid import UUID

import psycopg
import pytest

from magik_sa import names, server, wake
from magik_sa.claim import walk
from magik_sa.claim.walk import Walks
from magik_sa.server import connect_locking

READ = """
SELECT (SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes WHERE relname = 'magik_jobs')
     + (SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_user_tables WHERE relname = 'magik_jobs'),
       (SELECT sum(idx_blks_hit + idx_blks_read) FROM pg_statio_user_indexes WHERE indexrelname = 'magik_jobs_claim')"""
LOCK = """
SELECT count(pg_try_advisory_lock(uuid_hash_extended(id, 'magik_jobs'::regclass::oid::bigint))) FROM (
  SELECT id FROM magik_jobs WHERE priority = %s ORDER BY run_at, id LIMIT %s OFFSET 0) j"""
N = 50


class Reads(NamedTuple):
    """What one walk read."""

    rows: int
    pages: int

    def few(self, n: int = N) -> bool:
        """As many rows as a walk for `n` jobs needs: those, and one or two for each priority; pages likewise."""
        return self.rows <= n + 15 and self.pages <= 70


# The walk in the order of the index, as it would be without priorities and marks.
SIMPLE = """
SELECT id, priority, run_at FROM (
  SELECT id, priority, run_at FROM {jobs}
   WHERE queue = %(queue)s AND finished_at IS NULL AND expired_at IS NULL AND run_at <= now()
     AND job_class = ANY(%(known)s) AND id <> ALL(%(held)b::uuid[])
   ORDER BY priority, run_at, id OFFSET 0) c
 WHERE pg_try_advisory_lock(uuid_hash_extended(id, %(oid)s)) LIMIT %(n)s"""
SIMPLE = f"({SIMPLE}) UNION ALL SELECT NULL, NULL, now()"


class Bench:
    """The walks of a locking connection whose statements were prepared on an empty table."""

    def __init__(self, dsn: str) -> None:
        self.app = psycopg.connect(dsn, autocommit=True)
        self.app.execute("ALTER TABLE magik_jobs SET (autovacuum_enabled = off)")
        self.app.execute("ALTER TABLE magik_jobs DISABLE TRIGGER USER")  # they read too, and nobody waits
        self.app.execute("VACUUM ANALYZE magik_jobs")  # never vacuumed it would be planned for as if it held 10 pages
        self.locking = connect_locking(dsn, "bench")
        self.walks = Walks(self.locking, names.find(self.locking, None))
        self.held: list[UUID] = []
        for _ in range(8):  # from the sixth on the server plans once and for all
            self.walk(1)

    def walk(self, n: int = N) -> Reads:
        """A marked walk."""
        return self._reads(n)

    def walk_in_full(self, n: int = N) -> Reads:
        """A full one."""
        self.walks._budget._saved = 1.0
        self.walks.owe(["default"])
        return self._reads(n)

    def fill(self, n: int, priority: int = 100, cls: str = "Known", age: str = "1 h") -> None:
        self.app.execute(
            "INSERT INTO magik_jobs (job_class, priority, run_at) SELECT %s, %s, now() - %s::interval"
            " FROM generate_series(1, %s)",
            (cls, priority, age, n),
        )

    def look_ahead(self) -> Reads:
        """The look of an idle worker for the next time that something is due."""
        priorities = self.walks.priorities("default")
        return self._counted(
            lambda: wake.seconds_to_next(self.locking, self.walks._names, "default", ["Known"], priorities)
        )

    def _reads(self, n: int) -> Reads:
        return self._counted(lambda: self.held.extend(self.walks.walk("default", n, ["Known"], self.held)))

    def _counted(self, what: Callable[[], object]) -> Reads:
        before = self._read()
        what()
        self.locking.execute("SELECT pg_stat_force_next_flush()")
        self.locking.execute("SELECT 1")
        after = self._read()
        return Reads(after.rows - before.rows, after.pages - before.pages)

    def _read(self) -> Reads:
        self.app.execute("SELECT pg_stat_force_next_flush()")  # its own of before do not belong to what is counted
        [(rows, pages)] = self.app.execute(READ.encode()).fetchall()
        return Reads(int(rows), int(pages))

    def close(self) -> None:
        self.app.close()
        self.locking.close()


@contextmanager
def opened(dsn: str) -> Iterator[Bench]:
    bench = Bench(dsn)
    try:
        yield bench
    finally:
        bench.close()


@pytest.fixture
def bench(dsn: str) -> Iterator[Bench]:
    with opened(dsn) as bench:
        yield bench


def test_a_statement_prepared_on_an_empty_table_reads_what_it_claims(bench: Bench) -> None:
    bench.fill(20_000)
    assert bench.walk_in_full().few()
    assert [bench.walk().few() for _ in range(3)] == [True] * 3
    assert len(bench.held) == 4 * N


def test_without_the_settings_of_its_connection_it_reads_the_whole_table(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of all these tests: a plan for an empty table."""
    for name in ("enable_seqscan", "enable_sort"):
        monkeypatch.setitem(server.LOCKING, name, "on")
    with opened(dsn) as bench:
        bench.fill(20_000)
        assert bench.walk_in_full().rows >= 20_000


@pytest.mark.slow
def test_jobs_of_the_future_cost_nothing(bench: Bench) -> None:
    for priority in (1, 2, 3, 50):
        bench.fill(50_000, priority, age="-1 h")
    bench.fill(5_000)
    assert [bench.walk_in_full().few(), bench.walk().few(), bench.walk().few()] == [True] * 3
    assert len(bench.held) == 3 * N


@pytest.mark.slow
def test_in_the_plain_order_of_the_index_they_are_all_read(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control. PostgreSQL 18 skips from priority to priority by itself."""
    monkeypatch.setattr(walk, "WALK", SIMPLE)
    with opened(dsn) as bench:
        bench.fill(50_000, 1, age="-1 h")
        bench.fill(100)
        assert (bench.walk(1).pages > 200) == (bench.app.info.server_version < 180000)


def test_rows_locked_elsewhere_are_walked_past_once(bench: Bench, dsn: str) -> None:
    bench.fill(5_000)
    bench.fill(5_000, age="30 m")
    bench.fill(200, priority=7)
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute(LOCK, (100, 5_000))
        other.execute(LOCK, (7, 200))
        assert bench.walk_in_full().rows >= 5_200
        assert [bench.walk().few() for _ in range(3)] == [True] * 3
        assert bench.walk_in_full().rows >= 5_200, "the control: without marks"
        assert len(bench.held) == 5 * N


def test_rows_locked_elsewhere_cost_nothing_where_nothing_else_is_due(bench: Bench, dsn: str) -> None:
    bench.fill(5_000)
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute(LOCK, (100, 5_000))
        assert bench.walk_in_full().rows >= 5_000
        bench.walks._budget._saved = -1_000.0
        assert bench.walk().few(0)
    assert bench.held == []


def test_rows_of_unknown_classes_are_walked_past_once(bench: Bench) -> None:
    bench.fill(5_000, cls="Unknown")
    bench.fill(5_000, cls="Unknown", priority=5)
    bench.fill(5_000, age="30 m")
    assert bench.walk_in_full().rows >= 10_000
    assert [bench.walk().few() for _ in range(3)] == [True] * 3
    assert len(bench.held) == 4 * N


@pytest.mark.slow
def test_dead_rows_that_somebodys_snapshot_keeps_are_walked_past_once(bench: Bench, dsn: str) -> None:
    bench.fill(100_000)
    bench.fill(5_000, age="30 m")
    with psycopg.connect(dsn) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT FROM magik_jobs LIMIT 1")
        bench.app.execute("DELETE FROM magik_jobs WHERE run_at < now() - interval '45 m'")
        assert bench.walk_in_full().rows >= 100_000
        assert [bench.walk().few() for _ in range(3)] == [True] * 3
        bench.app.execute("DELETE FROM magik_jobs")
        assert bench.walk(1).rows >= 1_000, "those behind the mark, once"
        bench.walks._budget._saved = -1_000.0
        assert bench.walk().few(0), "where nothing is due, nothing is read"
        assert bench.look_ahead().few(0)
        bench.walks._of("default")._places.clear()
        assert bench.look_ahead().rows > 100_000, "the control: it would step over them to find the next priority"
    assert len(bench.held) == 4 * N
