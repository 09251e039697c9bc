"""The re-read: under the lock, what is due still? And the note of each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from ..ids import Ids
from ..names import Names
from ..rows import read_near
from ..unreadable import NEAREST
from .claimed import INTERRUPTED, Claimed, Owner

# A new statement, because the walk's snapshot is older than its locks, and a job that another worker finished in
# between would run twice. It tests the whole predicate again, and only what it returns is used. coalesce() keeps the
# planner off the claim index, which grows with dead tuples. A keyed job's lock on (class, key) is taken here.
#
# A row that somebody else's open transaction has locked or changed would hold up the thread that ends the job. xmax
# says who touched a row last, and who is open holds the lock on his own transaction. Nothing is looked up for a row
# that nobody has touched. (A multixact's number is nobody's transaction: such a row is taken, and its end waits.)
#
# The note is written in the same statement; what is read of it before is of the snapshot, so it is the note of a run
# before and never the one written below. That run was interrupted if its note says that it had begun, unless it
# recorded a failure after its claim and only died before the note was gone. The new note keeps saying so until that is
# recorded as a failed try. LATERAL and OFFSET 0 are one look into the index for each job: in a join, planned while the
# notes were nothing but dead rows that somebody's snapshot keeps, all of them were read for each.
#
# The columns are named for the sake of their times, which are held within what a datetime can be.
REREAD = f"""
WITH open AS MATERIALIZED (
  SELECT transactionid FROM pg_locks WHERE locktype = 'transactionid' AND granted AND mode = 'ExclusiveLock'
), live AS MATERIALIZED (
  SELECT j.id, j.job_class, j.queue, j.priority, {NEAREST.format("j.run_at")} AS run_at, j.args, j.context,
         j.key_digest, j.version, j.error_count, j.last_error, {NEAREST.format("j.failed_at")} AS failed_at,
         {NEAREST.format("j.enqueued_at")} AS enqueued_at, j.finished_at, j.expired_at,
         now() AS claimed_at, old.backend_pid AS old_pid,
         coalesce(old.begun AND coalesce(j.failed_at <= old.claimed_at, true), false) AS old_begun,
         CASE WHEN j.key_digest IS NOT NULL
              THEN hashtextextended(j.job_class || encode(j.key_digest, 'hex'), -%(oid)s) END AS key_lock,
         CASE WHEN j.key_digest IS NULL THEN true
              ELSE pg_try_advisory_lock(hashtextextended(j.job_class || encode(j.key_digest, 'hex'), -%(oid)s))
         END AS key_free,
         CASE WHEN j.xmax = '0' THEN true
              ELSE NOT EXISTS (SELECT FROM open WHERE open.transactionid = j.xmax) END AS row_free
    FROM {{jobs}} j LEFT JOIN LATERAL (SELECT * FROM {{claims}} WHERE job_id = j.id OFFSET 0) old ON true
   WHERE j.id = ANY(%(ids)b::uuid[]) AND coalesce(j.finished_at, j.expired_at) IS NULL
     AND j.run_at <= now() AND j.job_class = ANY(%(known)s)
), noted AS (
  INSERT INTO {{claims}} (job_id, worker, backend_pid, backend_start, begun)
  SELECT id, %(worker)s, %(pid)s, %(start)s, old_begun FROM live WHERE key_free AND row_free
  ON CONFLICT (job_id) DO UPDATE SET worker = excluded.worker, backend_pid = excluded.backend_pid,
     backend_start = excluded.backend_start, claimed_at = excluded.claimed_at, begun = excluded.begun
)
SELECT * FROM live"""


class Reread:
    """What became of some locked ids, each in one of four lists; those in none are due no more.

    `twins` are second rows of a key that runs here already, whose lock on the key this session now has twice: session
    locks are re-entrant and let both through. `refused`: the key runs elsewhere. `touched`: the row is in an open
    transaction of somebody else's; the lock on its key, if it has one, came all the same.
    """

    def __init__(self, rows: list[dict[str, Any]], keys: Collection[int]) -> None:
        self.ours: list[Claimed] = []
        self.twins: list[Claimed] = []
        self.refused: list[Claimed] = []
        self.touched: list[Claimed] = []
        self._taken = set(keys)
        for row in sorted(rows, key=lambda row: (row["priority"], row["run_at"], row["id"].int)):
            self._sort(row, _claimed(row))

    def _sort(self, row: dict[str, Any], job: Claimed) -> None:
        if not row["key_free"]:
            self.refused.append(job)
        elif not row["row_free"]:
            self.touched.append(job)
        elif job.key_lock in self._taken:
            self.twins.append(job)
        else:
            self.ours.append(job)
            self._taken |= set() if job.key_lock is None else {job.key_lock}


def reread(
    connection: psycopg.Connection[Any],
    names: Names,
    ids: Sequence[UUID],
    known: Collection[str],
    keys: Collection[int],
    owner: Owner,
    worker: str,
) -> Reread:
    """Read these again, lock their keys and note them as `owner`'s; `keys` are those that run here already."""
    values = {"ids": Ids(ids), "known": list(known), "oid": names.oid, "worker": worker}
    cursor = connection.cursor(row_factory=dict_row)
    read_near(cursor)
    cursor.execute(names.sql(REREAD), {**values, "pid": owner[0], "start": owner[1]}, prepare=True)
    return Reread(cursor.fetchall(), keys)


def _claimed(row: dict[str, Any]) -> Claimed:
    interrupted = row["old_pid"] is not None and row["old_begun"]
    doubtful = row["old_pid"] is not None or (row["last_error"] or "").startswith(INTERRUPTED)
    return Claimed(row, interrupted, doubtful and not interrupted)
