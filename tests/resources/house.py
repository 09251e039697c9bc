"""A worker beside somebody who adds jobs and notifies, and what it holds when it has come to rest."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import psycopg
from psycopg import conninfo
from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from magik_sa import bulk_enqueue
from tests.jobs.burst import Burst, BurstCounts, BurstFails, counted
from tests.jobs.lasting import Lasting
from tests.jobs.waking import Woken
from tests.tools import process
from tests.tools.effects import TABLE
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess, dsn_of

MODULES = ("tests.jobs.burst", "tests.jobs.waking", "tests.jobs.lasting")  # of job classes that the worker has to know
GROWTH = 5 * 1024  # KiB, less than which the third round may leave more than the second
FAILS_EVERY = 10  # of these jobs one fails once, and is tried again
REST_WITHIN = 3_600.0  # seconds until all is done

# One transaction a notification, as fast as the server can. Of five one names the worker's queue, the others nothing
# that it knows: another queue, the longest that a notification may be, nothing at all, and another's channel.
FLOOD = """
DO $$ BEGIN
  FOR i IN 1 .. {notes} LOOP
    PERFORM pg_notify(CASE i % 5 WHEN 0 THEN 'another_' ELSE '' END || 'magik_' || 'magik_jobs'::regclass::oid,
                      CASE i % 100 WHEN 3 THEN rpad(i::text, 7999, '.')
                      ELSE CASE i % 5 WHEN 1 THEN 'default' WHEN 2 THEN '🦄' || i ELSE '' END END);
    COMMIT;
  END LOOP;
END $$"""

LEFT = """
SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %(app)s),
       (SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
         WHERE a.application_name LIKE %(app)s AND l.granted),
       (SELECT count(*) FROM magik_claims), (SELECT count(*) FROM magik_workers)"""

# The worker connects as the owner of the database, whoever adds and notifies as somebody else.
ASKED = """
SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements(false) s
 WHERE s.userid = (SELECT datdba FROM pg_database WHERE datname = current_database())
   AND s.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"""


class Held(NamedTuple):
    """What a worker that has nothing to do holds: here, and on the server. `blocks` are those of memory in use."""

    process: process.Held
    blocks: int
    connections: int
    locks: int
    notes: int
    workers: int

    @property
    def countable(self) -> tuple[int, ...]:
        """All but the memory."""
        here = (self.process.threads, self.process.descriptors)
        return (*here, self.connections, self.locks, self.notes, self.workers)


class House:
    """`database` as its owner's URL, which the worker uses; `other` is the same as a superuser's dsn."""

    def __init__(self, database: str, other: str, worker: WorkerProcess) -> None:
        self.worker, self._dsn = worker, other
        self._other = psycopg.connect(other, autocommit=True)
        self._other.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        with psycopg.connect(dsn_of(database), autocommit=True) as connection:
            connection.execute(TABLE)
        self.engine = _engine(database, other)

    def close(self) -> None:
        """Let go of the database."""
        self.engine.dispose()
        self._other.close()

    def asked(self) -> int:
        """How many statements the worker has sent so far."""
        row = self._other.execute(ASKED).fetchone()
        assert row is not None
        return int(row[0])

    def work(self, jobs: int) -> float:
        """So many jobs, all of them to their end; the seconds that it took."""
        begun = time.monotonic()
        with Session(self.engine) as session, session.begin():
            bulk_enqueue(session, (BurstFails() if n % FAILS_EVERY == 0 else Burst() for n in range(jobs)))
        self.rest()
        return time.monotonic() - begun

    def flood(self, notes: int) -> tuple[float, int]:
        """So many notifications; the seconds that it took, and the statements that they have made the worker send."""
        before, begun = self.asked(), time.monotonic()
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(FLOOD.format(notes=notes).encode())
        return time.monotonic() - begun, self.asked() - before

    def trickle(self, notes: int, queue: str = "default") -> tuple[float, int]:
        """As many one by one, slow enough for each to be heard alone."""
        before, begun = self.asked(), time.monotonic()
        for _ in range(notes):
            self._other.execute("SELECT pg_notify('magik_' || 'magik_jobs'::regclass::oid, %s)", [queue])
        return time.monotonic() - begun, self.asked() - before

    def occupy(self, threads: int) -> None:
        """Jobs that last for a minute, for so many threads."""
        with Session(self.engine) as session, session.begin():
            session.add_all(Lasting(seconds=60) for _ in range(threads))
        until(lambda: self._one("SELECT count(*) FROM magik_claims WHERE begun") == threads)

    def wake(self) -> float:
        """One job more: the seconds from its commit to its start."""
        with Session(self.engine) as session, session.begin():
            session.add(job := Woken())
            id = job.id
        committed = self._one("SELECT extract(epoch FROM clock_timestamp())")
        started = "SELECT extract(epoch FROM started) FROM effects WHERE job_id = %s"
        return float(until(lambda: self._one(started, id), 30)) - committed

    def rest(self) -> Held:
        """Wait until all is done, and all that was held for it is given back; what the worker holds then.

        In the middle of a statement, as it has one now and then, it would hold the locks of that.
        """
        self._finish()
        with Session(self.engine) as session, session.begin():
            session.add(counts := BurstCounts())
            file = counted(Path(self.worker.env["BURST_FILE"]), counts.id)
        self._finish()
        blocks = int(file.read_text())
        return until(lambda: self._at_rest(blocks), 30, what="only the flag is held")

    def _finish(self) -> None:
        until(lambda: self._one("SELECT count(*) FROM magik_jobs") == 0, REST_WITHIN, 0.1, "no job is left")

    def _at_rest(self, blocks: int) -> Held | None:
        left = self._other.execute(LEFT, {"app": f"{self.worker.app_name}%"}).fetchone()
        assert left is not None
        held = Held(process.held(self.worker.pid), blocks, *map(int, left))
        return held if (held.notes, held.locks) == (0, 1) else None

    def _one(self, query: str, *values: object) -> float:
        row = self._other.execute(query.encode(), values).fetchone()
        return 0.0 if row is None else float(row[0])


def _engine(database: str, other: str) -> Engine:
    words = conninfo.conninfo_to_dict(other)
    return create_engine(make_url(database).set(username=str(words["user"]), password=str(words.get("password") or "")))
