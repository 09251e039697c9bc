"""Somebody's old snapshot fills the tables with dead rows, and the planner is told that they hold next to nothing.

Autovacuum comes, may remove nothing, counts what is alive and has everything planned anew. To read a whole index once
looks as cheap then as to look one row up, and where that is done for each job of a claim the dead rows are read
hundreds of times. Measured in pages that the server looks at, never in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, arg, names, wake
from magik_sa.asking import Asking
from magik_sa.claim import Busy, Claims
from magik_sa.completing import complete, complete_left
from magik_sa.server import PERFORMING, connect_locking, settings_sql
from magik_sa.status import status
from magik_sa.status.at_work import at_work

REREADING = import_module("magik_sa.claim.reread")  # the package has a verb of that name
DEAD, N = 20_000, 100
ONCE = DEAD + 2_000  # pages: every dead row by an index, each of which is a page looked at
EACH = 10  # pages for one row: the index, the table, and what is written of both
PAGES = """
SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)
  FROM pg_statio_user_tables WHERE relname IN ('magik_jobs', 'magik_claims')"""
JOBS = "INSERT INTO magik_jobs (job_class, run_at) SELECT 'Known', now() - interval '1 h' FROM generate_series(1, %s)"
NOTES = """
INSERT INTO magik_claims (job_id, worker, backend_pid, backend_start, begun)
SELECT gen_random_uuid(), 'gone', 1, '2020-01-01', true FROM generate_series(1, %s)"""

ENDED = "SELECT magik_jobs_ended(%s, 1, false)"
GONE = "INSERT INTO magik_workers (backend_pid, backend_start, name, queues) VALUES (1, '2020-01-01', 'gone', '{}')"

KEYED = """
INSERT INTO magik_jobs (job_class, key_digest, run_at)
SELECT 'Wearing', sha256(n::text::bytea), now() - interval '1 h' FROM generate_series(1, %s) n"""


class Wearing(Job):
    idempotent_by = ("number",)
    number: Mapped[int] = arg()

    def perform(self) -> None:
        pass


class Worn:
    """A worker's connections, whose statements are planned in such a database."""

    def __init__(self, dsn: str, stack: ExitStack) -> None:
        self.app = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        for table in ("magik_jobs", "magik_claims"):
            self.app.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
        self.app.execute("ALTER TABLE magik_jobs DISABLE TRIGGER USER")  # they read too, and nobody waits
        self.fill(DEAD)
        reader = stack.enter_context(psycopg.connect(dsn))
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT FROM magik_schema")
        for table in ("magik_jobs", "magik_claims"):
            self.app.execute(f"DELETE FROM {table}".encode())
        self.app.execute("VACUUM ANALYZE magik_jobs, magik_claims")
        self.locking = stack.enter_context(connect_locking(dsn, "worn"))
        self.names = names.find(self.locking, None)
        self.owner = wake.register(self.locking, self.names, "w", ["default"])
        self.claims = Claims(self.locking, self.names, self.owner, "w")
        self.performer = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        self.performer.execute(settings_sql(PERFORMING).encode())
        for _ in range(8):  # from the sixth on a plan is kept
            self.claims.claim("default", 1, ["Known"], Busy((), ()))
            REREADING.reread(self.locking, self.names, [UUID(int=1)], ["Known"], (), self.owner, "w")
            self.claims.notes.begun([UUID(int=1)])
            self.claims.notes.forget([UUID(int=1)])
            wake.hint(self.locking, self.names)
            for keep in (False, True):
                complete(self.locking, self.names, [UUID(int=1)], 1, keep=keep)
                complete_left(self.locking, self.names, [UUID(int=1)], 1, keep=keep)

    def fill(self, n: int) -> None:
        for each in (JOBS, NOTES):
            self.app.execute(each, (n,))

    def claimed(self) -> list[UUID]:
        """So many jobs more, which are taken."""
        self.app.execute(JOBS, (N,))
        return [job.id for job in self.claims.claim("default", N, ["Known"], Busy((), ())).jobs]

    def pages(self, what: Callable[[], object], *by: psycopg.Connection[Any]) -> int:
        """That the server looks at for it; `by` are connections that are not ours."""
        before = self._pages(*by)
        what()
        return self._pages(*by) - before

    def _pages(self, *by: psycopg.Connection[Any]) -> int:
        for each in (*by, self.locking, self.performer, self.app):
            each.execute("SELECT pg_stat_force_next_flush()")
            each.rollback()
        return int((self.app.execute(PAGES.encode()).fetchone() or [0])[0])


@pytest.fixture
def worn(dsn: str) -> Iterator[Worn]:
    with ExitStack() as stack:
        yield Worn(dsn, stack)


def test_each_statement_of_a_jobs_life_reads_its_own_rows(worn: Worn) -> None:
    worn.app.execute(JOBS, (N,))
    ids = worn.claims.walks.walk("default", N, ["Known"], [])
    assert len(ids) == N
    few = EACH * N
    assert worn.pages(lambda: worn.claims.reread(ids, ["Known"], ())) < 2 * few, "reads, and writes the notes"
    assert worn.pages(lambda: worn.claims.notes.begun(ids)) < few
    assert worn.pages(lambda: complete(worn.locking, worn.names, ids[:40], 1, keep=False)) < few
    assert worn.pages(lambda: complete(worn.locking, worn.names, ids[40:80], 1, keep=True)) < few
    assert worn.pages(lambda: complete_left(worn.locking, worn.names, ids[80:-1], 1, keep=True)) < few
    assert worn.pages(lambda: worn.performer.execute(ENDED, (ids[-1],))) < 2 * EACH
    assert worn.pages(lambda: worn.claims.notes.forget(ids)) < few
    assert worn.app.execute("SELECT count(*) FROM magik_jobs WHERE finished_at IS NULL").fetchone() == (0,)
    assert worn.app.execute("SELECT count(*) FROM magik_claims").fetchone() == (0,)


def test_the_look_for_dead_workers_reads_nothing_but_where_there_is_one(worn: Worn) -> None:
    """It comes several times a second. What a dead worker has left behind is read once."""
    worn.claimed()
    assert worn.pages(lambda: wake.hint(worn.locking, worn.names)) < EACH
    worn.app.execute(GONE)
    worn.app.execute(NOTES, (N,))
    assert worn.pages(lambda: wake.hint(worn.locking, worn.names)) < ONCE + EACH * N
    assert worn.app.execute("SELECT count(*) FROM magik_claims").fetchone() == (N,), "those of its own"


def test_a_status_reads_the_dead_rows_a_few_times_and_not_for_each_job(worn: Worn, engine: Engine) -> None:
    running = len(worn.claimed())
    with engine.connect() as connection:
        raw: Any = connection.connection.driver_connection
        assert worn.pages(lambda: at_work(Asking(connection)), raw) < ONCE
        assert worn.pages(lambda: status(Asking(connection)), raw) < 6 * ONCE
        found = status(Asking(connection)).queues or []
        assert [queue.running for queue in found] == [running] == [N]


def test_a_job_with_a_key_reads_dead_keys_only_where_it_is_a_repeat(worn: Worn, engine: Engine) -> None:
    worn.app.execute(KEYED, (DEAD,))
    worn.app.execute("DELETE FROM magik_jobs")
    worn.app.execute("VACUUM ANALYZE magik_jobs")
    with Session(engine) as session:
        raw: Any = session.connection().connection.driver_connection

        def add() -> None:
            session.add(Wearing(number=1))
            session.commit()

        assert worn.pages(add, raw) < 5 * EACH
        assert worn.pages(add, raw) > DEAD, "the control"
        assert worn.app.execute("SELECT count(*) FROM magik_jobs").fetchone() == (1,)
