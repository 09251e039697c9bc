"""On a million rows each statement of a job's life reads its own rows, though it was planned when there were none.

A queue that was empty overnight, and vacuumed, and then gets a burst: until the next autovacuum a plan that was kept
from then would read the whole table each time. Measured in what the server read, never in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from magik_sa import names, wake
from magik_sa.asking import Asking
from magik_sa.claim import Busy, Claims
from magik_sa.claim.reread import reread
from magik_sa.completing import Left, complete, complete_left
from magik_sa.ending import GONE, KEPT
from magik_sa.server import PERFORMING, connect_locking, settings_sql
from magik_sa.status import status

MILLION = """
INSERT INTO magik_jobs (job_class, priority, run_at, finished_at)
SELECT 'Known', 100, now() - n * interval '1 ms', CASE WHEN n % 2 = 0 THEN now() END
  FROM generate_series(1, 1000000) n"""
READ = """
SELECT (SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes WHERE relname = 'magik_jobs')
     + (SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_user_tables WHERE relname = 'magik_jobs')"""
N = 50


class Burst:
    """The connections of a worker, whose statements were prepared on an empty table; then come the rows."""

    def __init__(self, dsn: str, database: str) -> None:
        self.app = psycopg.connect(dsn, autocommit=True)
        for prepare in ("SET (autovacuum_enabled = off)", "DISABLE TRIGGER USER"):
            self.app.execute(f"ALTER TABLE magik_jobs {prepare}".encode())
        self.locking = connect_locking(dsn, "burst")
        self.names = names.find(self.locking, None)
        self.claims = Claims(self.locking, self.names, wake.register(self.locking, self.names, "b", ["default"]), "b")
        self.engine = create_engine(database)
        self.performer = self.engine.connect()
        self.performer.execute(text(settings_sql(PERFORMING)))
        self.performer.commit()
        self.app.execute("VACUUM ANALYZE magik_jobs")
        for _ in range(10):  # from the sixth on a plan is kept
            self.claims.claim("default", N, ["Known"], Busy((), ()))
            reread(self.locking, self.names, [UUID(int=1)], ["Known"], (), self.claims.owner, "b")
            for end in (GONE, KEPT):
                self.end(end, UUID(int=1))
            for keep in (False, True):
                self.end_with_commit(UUID(int=1), keep=keep)
            self.completed([UUID(int=1)], keep=True)
            self.completed([UUID(int=1)], keep=False)
            self.left([UUID(int=1)], keep=True)
            self.left([UUID(int=1)], keep=False)
        self.app.execute(MILLION)

    def end(self, statement: Any, id: UUID) -> int:
        ended = self.performer.execute(statement, {"its_id": id, "its_version": 1}).rowcount
        self.performer.commit()
        return ended

    def end_with_commit(self, id: UUID, *, keep: bool) -> None:
        with suppress(DBAPIError):  # there is no such row at first
            self.performer.exec_driver_sql(f"SELECT magik_jobs_ended('{id}', 1, {keep})")
        self.performer.commit()

    def completed(self, ids: list[UUID], *, keep: bool) -> set[UUID]:
        return complete(self.locking, self.names, ids, 1, keep=keep)

    def left(self, ids: list[UUID], *, keep: bool) -> Left:
        return complete_left(self.locking, self.names, ids, 1, keep=keep)

    def rows_read(self, by: psycopg.Connection[Any], do: Callable[[], object]) -> int:
        """By this session, in doing that."""
        before = self._read(by)
        do()
        return self._read(by) - before

    def _read(self, by: psycopg.Connection[Any]) -> int:
        by.execute("SELECT pg_stat_force_next_flush()")
        return int((self.app.execute(READ).fetchone() or [0])[0])

    def close(self) -> None:
        for each in (self.app, self.locking, self.performer):
            each.close()
        self.engine.dispose()


@pytest.fixture
def burst(dsn: str, database: str) -> Iterator[Burst]:
    burst = Burst(dsn, database)
    yield burst
    burst.close()


def test_each_statement_reads_its_own_rows_of_a_million(burst: Burst, engine: Engine) -> None:
    taken: list[UUID] = []

    def claim() -> None:
        taken.extend(job.id for job in burst.claims.claim("default", N, ["Known"], Busy((), ())).jobs)

    driver: Any = burst.performer.connection.driver_connection
    assert burst.rows_read(burst.locking, claim) < 4 * N  # the walk, the re-read, and one or two for each priority
    assert len(taken) == N
    gone, kept, gone_too, kept_too, *rest = taken
    assert burst.rows_read(driver, lambda: burst.end(GONE, gone)) < 5
    assert burst.rows_read(driver, lambda: burst.end(KEPT, kept)) < 5
    assert burst.rows_read(driver, lambda: burst.end_with_commit(gone_too, keep=False)) < 5
    assert burst.rows_read(driver, lambda: burst.end_with_commit(kept_too, keep=True)) < 5
    ended = {"id": [gone_too, kept_too]}
    left = burst.app.execute("SELECT id, finished_at IS NULL FROM magik_jobs WHERE id = ANY(%(id)s)", ended).fetchall()
    assert left == [(kept_too, False)]
    assert burst.rows_read(burst.locking, lambda: burst.completed(rest[:20], keep=False)) <= 3 * 20
    assert burst.rows_read(burst.locking, lambda: burst.completed(rest[20:32], keep=True)) <= 3 * 12
    # Each looks at its rows once more, for those that are there.
    assert burst.rows_read(burst.locking, lambda: burst.left(rest[32:40], keep=False)) <= 4 * 8
    assert burst.rows_read(burst.locking, lambda: burst.left(rest[40:], keep=True)) <= 4 * (N - 44)
    assert burst.rows_read(burst.locking, lambda: burst.left(rest, keep=True)) <= 3 * N, "which are all ended"
    with engine.connect() as looking:
        raw: Any = looking.connection.driver_connection
        assert burst.rows_read(raw, lambda: status(Asking(looking))) < 25_000  # it counts no further than its limit
