"""What a claim costs, in blocks of the job table and of its indexes that it looks at. No clock is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from magik_sa import names, wake
from magik_sa.claim import Batch, Busy, Claims
from magik_sa.claim.reread import REREAD
from magik_sa.server import connect_locking

FEW = 60  # blocks; five jobs in ten thousand cost 20 to 30
BLOCKS = """
SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)
  FROM pg_statio_user_tables WHERE relname = 'magik_jobs'"""


class Meter:
    """A worker's locking connection that counts."""

    def __init__(self, dsn: str) -> None:
        self.connection = connect_locking(dsn, "meter")
        found = names.find(self.connection, None)
        self.claims = Claims(
            self.connection, found, wake.register(self.connection, found, "meter", ["default"]), "meter"
        )

    def claim(self) -> Batch:
        return self.claims.claim("default", 5, ["Known"], Busy((), ()))

    def blocks_of_a_claim(self) -> int:
        """How many it looks at for five jobs, all that are due, which are given back."""
        before = self._blocks()
        batch = self.claim()
        blocks = self._blocks() - before
        assert len(batch.jobs) == 5
        self.claims.release(batch.jobs)
        return blocks

    def _blocks(self) -> int:
        self.connection.execute("SELECT pg_stat_force_next_flush()")
        return int((self.connection.execute(BLOCKS.encode()).fetchone() or [0])[0])


@pytest.fixture
def meter(dsn: str) -> Iterator[Meter]:
    with psycopg.connect(dsn) as app:
        app.execute("ALTER TABLE magik_jobs SET (autovacuum_enabled = off)")  # its blocks would be counted
    meter = Meter(dsn)
    yield meter
    meter.connection.close()


def fill(app: psycopg.Connection[Any], count: int, values: str = "100, NULL, NULL, now()", cls: str = "Known") -> None:
    app.execute(
        f"""
        INSERT INTO magik_jobs (priority, finished_at, expired_at, run_at, job_class)
        SELECT {values}, '{cls}' FROM generate_series(1, {count})""".encode()
    )


@pytest.mark.parametrize("values", ["1, now(), NULL, now()", "1, NULL, now(), now()"], ids=["finished", "dead letters"])
def test_rows_that_have_ended_cost_a_claim_nothing(app: psycopg.Connection[Any], meter: Meter, values: str) -> None:
    """Ten thousand, of a more urgent priority, so that they would come first."""
    fill(app, 10_000, values)
    fill(app, 5)
    assert meter.blocks_of_a_claim() < FEW


def test_the_reread_goes_by_the_primary_key(app: psycopg.Connection[Any], meter: Meter) -> None:
    """Beside many rows that are kept the claim's index looks small, and grows with whatever is dead but not gone."""
    fill(app, 20_000, "100, now(), NULL, now()")
    app.execute("VACUUM ANALYZE magik_jobs")
    ids = [id for (id,) in app.execute("SELECT id FROM magik_jobs LIMIT 5")]
    values = {"ids": ids, "known": ["Known"], "oid": 1, "worker": "meter", "pid": 1, "start": "now"}
    plan = meter.connection.execute(b"EXPLAIN " + meter.claims.names.sql(REREAD), values).fetchall()
    scans = {index for (line,) in plan for index in ("magik_jobs_pkey", "magik_jobs_claim") if index in line}
    assert scans == {"magik_jobs_pkey"}
