"""Claim: session advisory locks, taken one row at a time, then the truth read again.

Nothing is written to the job table by a claim, and nothing has to be cleaned up after a crash: a lock lives as
long as the session that holds it. The shape follows Que (Chris Hanks) in taking advisory locks in the order of
the index; it streams instead of recursing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from .names import Names

Connection = psycopg.Connection[Any]
Owner = tuple[int, Any]

INTERRUPTED = "RunError: MAGIK_JOB_INTERRUPTED"  # how last_error begins where a run's worker died

# The walk. Candidates stream in index order; the lock is tried above the fence (OFFSET 0), one row at a time,
# and the LIMIT stands above the lock, so exactly as many locks are taken as rows come back. Without the fence,
# or with the lock in the inner WHERE, a plan that sorts locks every row of the table before it returns one, and
# fills the server's lock table for everybody. job_class is tested inside the fence: rows of unknown classes
# cost no lock. Ids in flight here are left out, because session locks are re-entrant.
WALK = """
SELECT id FROM (
  SELECT id FROM {jobs}
   WHERE queue = %(queue)s AND finished_at IS NULL AND expired_at IS NULL AND run_at <= now()
     AND job_class = ANY(%(known)s) AND id <> ALL(%(held)b::uuid[])
   ORDER BY priority, run_at, id
  OFFSET 0) c
WHERE pg_try_advisory_lock(uuid_hash_extended(id, %(oid)s)) LIMIT %(n)s"""

# The re-read: a new statement, because the walk's snapshot is older than its locks, and a job that another
# worker finished in between would run twice. It tests the whole predicate again, and only what it returns is
# used. coalesce() keeps the planner off the claim index, which grows with dead tuples. A keyed job's lock on
# (class, key) is taken here. The note is written in the same statement; the LEFT JOIN reads the snapshot, so it
# sees the note of a run before and never the one written below. That run was interrupted if its note says that it
# had begun, unless it recorded a failure after its claim and only died before the note was gone. The new note keeps
# saying so until that is recorded as a failed try.
REREAD = """
WITH live AS MATERIALIZED (
  SELECT j.*, now() AS claimed_at, old.backend_pid AS old_pid,
         coalesce(old.begun AND coalesce(j.failed_at <= old.claimed_at, true), false) AS old_begun,
         CASE WHEN j.key_digest IS NOT NULL
              THEN hashtextextended(j.job_class || encode(j.key_digest, 'hex'), -%(oid)s) END AS key_lock,
         CASE WHEN j.key_digest IS NULL THEN true
              ELSE pg_try_advisory_lock(hashtextextended(j.job_class || encode(j.key_digest, 'hex'), -%(oid)s))
         END AS key_free
    FROM {jobs} j LEFT JOIN {claims} old ON old.job_id = j.id
   WHERE j.id = ANY(%(ids)b::uuid[]) AND coalesce(j.finished_at, j.expired_at) IS NULL
     AND j.run_at <= now() AND j.job_class = ANY(%(known)s)
), noted AS (
  INSERT INTO {claims} (job_id, worker, backend_pid, backend_start, begun)
  SELECT id, %(worker)s, %(pid)s, %(start)s, old_begun FROM live WHERE key_free
  ON CONFLICT (job_id) DO UPDATE SET worker = excluded.worker, backend_pid = excluded.backend_pid,
     backend_start = excluded.backend_start, claimed_at = excluded.claimed_at, begun = excluded.begun
)
SELECT * FROM live"""

BEGUN = """
UPDATE {claims} SET begun = true
 WHERE job_id = ANY(%(ids)b::uuid[]) AND backend_pid = %(pid)s AND backend_start = %(start)s AND NOT begun"""

# Its owner in the WHERE: a late delete never takes the note of who has the job now.
FORGET = """
DELETE FROM {claims} WHERE job_id = ANY(%(ids)b::uuid[]) AND backend_pid = %(pid)s AND backend_start = %(start)s"""

# Given back before it started: a suspect stays one, and is not taken for a run that had begun.
NOT_BEGUN = """
UPDATE {claims} SET begun = false
 WHERE job_id = ANY(%(ids)b::uuid[]) AND backend_pid = %(pid)s AND backend_start = %(start)s"""

UNLOCK = """
SELECT i FROM unnest(%(ids)b::uuid[]) i WHERE NOT pg_advisory_unlock(uuid_hash_extended(i, %(oid)s))"""

UNLOCK_KEYS = "SELECT count(*) FILTER (WHERE pg_advisory_unlock(k)) FROM unnest(%(keys)s::bigint[]) k"

# After a lost connection: the locks of jobs that still run, taken again.
RELOCK = """
SELECT i FROM unnest(%(ids)b::uuid[]) i WHERE pg_try_advisory_lock(uuid_hash_extended(i, %(oid)s))"""

RELOCK_KEYS = "SELECT k FROM unnest(%(keys)s::bigint[]) k WHERE pg_try_advisory_lock(k)"

# And then their notes, unless another worker wrote its own there meanwhile.
TAKE_OVER = """
UPDATE {claims} SET backend_pid = %(pid)s, backend_start = %(start)s
 WHERE job_id = ANY(%(ids)b::uuid[]) AND backend_pid = %(old_pid)s AND backend_start = %(old_start)s
RETURNING job_id"""


# Due rows of classes that nobody declared here: never touched, only told of.
UNSERVED = """
SELECT DISTINCT job_class FROM (
  SELECT job_class FROM {jobs}
   WHERE queue = ANY(%(queues)s) AND finished_at IS NULL AND expired_at IS NULL AND run_at <= now()
     AND job_class <> ALL(%(known)s) LIMIT 1000) j"""


class LockLost(Exception):
    """A lock that the book says is held was not: the connection is closed and everything taken again."""


@dataclass(frozen=True)
class Claimed:
    """A job whose lock this worker holds: the row as re-read, and what an older note told of a run before.

    `interrupted`: a run before had begun and its worker died. `suspect`: there was a note, but the run may not
    have begun; or its last failure was such a death. The note of each must say that it has begun before it starts;
    that of an interrupted one does already.
    """

    row: dict[str, Any]
    interrupted: bool
    suspect: bool

    @property
    def id(self) -> UUID:
        id: UUID = self.row["id"]
        return id

    @property
    def key_lock(self) -> int | None:
        key: int | None = self.row["key_lock"]
        return key


@dataclass(frozen=True)
class Batch:
    """What one claim brought: `jobs` to run, in claim order, and `refused` ids whose key runs elsewhere."""

    jobs: list[Claimed]
    refused: list[UUID]


class Claims:
    """The verbs of claiming on one locking connection."""

    def __init__(self, connection: Connection, names: Names, owner: Owner, worker: str) -> None:
        self.connection, self.names, self.owner, self.worker = connection, names, owner, worker

    def claim(self, queue: str, n: int, known: Collection[str], busy: Busy) -> Batch:
        """Take up to `n` due jobs of `queue`, none of them `busy` here."""
        ids = self.walk(queue, n, known, busy.ids)
        return self.reread(ids, known, busy.keys) if ids else Batch([], [])

    def walk(self, queue: str, n: int, known: Collection[str], held: Collection[UUID]) -> list[UUID]:
        """Lock up to `n` candidates; the caller must re-read them before it believes any."""
        values = {"queue": queue, "n": n, "known": list(known), "held": list(held), "oid": self.names.oid}
        return [row[0] for row in self._run(WALK, values)]

    def reread(self, ids: Sequence[UUID], known: Collection[str], keys: Collection[int]) -> Batch:
        """Keep what is still due and live, note it, and unlock the rest."""
        values = {"ids": list(ids), "known": list(known), "oid": self.names.oid, "worker": self.worker, **self._owner()}
        cursor = self.connection.cursor(row_factory=dict_row)
        rows = {row["id"]: row for row in cursor.execute(self.names.sql(REREAD), values, prepare=True)}
        ours, twins = _apart([rows[id] for id in ids if id in rows and rows[id]["key_free"]], keys)
        refused = [row["id"] for row in rows.values() if not row["key_free"]]
        self._give_back_twins(twins)
        self.unlock([id for id in ids if id not in {row["id"] for row in ours}])
        return Batch([_claimed(row) for row in ours], refused + [row["id"] for row in twins])

    def begun(self, ids: Collection[UUID]) -> None:
        """Say in the notes that these runs have begun, so that a death counts as one of their tries."""
        self._run(BEGUN, {"ids": list(ids), **self._owner()})

    def release(self, jobs: Collection[Claimed]) -> None:
        """After a run's commit: delete the notes, then, in a statement of its own, unlock.

        In one statement the next holder could read the note of a run that has ended well, and count a failure.
        """
        self.forget([job.id for job in jobs])
        self.unlock([job.id for job in jobs], _keys(jobs))

    def give_back(self, jobs: Collection[Claimed]) -> None:
        """Unlock jobs that were not begun. What an older note told of a run before is still to be told."""
        self.forget([job.id for job in jobs if not (job.suspect or job.interrupted)])
        if suspects := [job.id for job in jobs if job.suspect]:
            self._run(NOT_BEGUN, {"ids": suspects, **self._owner()})
        self.unlock([job.id for job in jobs], _keys(jobs))

    def forget(self, ids: Collection[UUID]) -> None:
        """Delete the notes of these jobs, where they are this owner's own."""
        if ids:
            self._run(FORGET, {"ids": list(ids), **self._owner()})

    def unlock(self, ids: Collection[UUID], keys: Collection[int] = ()) -> None:
        """Give locks back; each boolean is looked at. Raises `LockLost` where one was not held."""
        if ids and (lost := self._run(UNLOCK, {"ids": list(ids), "oid": self.names.oid})):
            raise LockLost(", ".join(str(row[0]) for row in lost))
        if keys and self._run(UNLOCK_KEYS, {"keys": list(keys)})[0][0] != len(keys):
            raise LockLost("the lock on a key")

    def unserved(self, queues: Collection[str], known: Collection[str]) -> list[str]:
        """Classes with due jobs in these queues that this process does not know."""
        return sorted(row[0] for row in self._run(UNSERVED, {"queues": list(queues), "known": list(known)}))

    def take_again(self, jobs: Collection[Claimed], before: Iterable[Owner]) -> set[UUID]:
        """After a reconnect: the jobs whose locks, keys and notes are ours again. Locks first, then notes.

        `before` are the sessions of ours that the notes may name.
        """
        if not jobs:
            return set()
        ids, keys = [job.id for job in jobs], _keys(jobs)
        locked = {row[0] for row in self._run(RELOCK, {"ids": ids, "oid": self.names.oid})}
        keyed = {row[0] for row in self._run(RELOCK_KEYS, {"keys": keys})}
        free = [job.id for job in jobs if job.id in locked and job.key_lock in {None, *keyed}]
        ours: set[UUID] = set()
        for pid, start in before:
            values = {"ids": free, "old_pid": pid, "old_start": start, **self._owner()}
            ours |= {row[0] for row in self._run(TAKE_OVER, values)}
        self.unlock(locked - ours, keyed - set(_keys(job for job in jobs if job.id in ours)))
        return ours

    def _give_back_twins(self, twins: list[dict[str, Any]]) -> None:
        """A second row of a key that runs here: its lock on the key came twice to the same session."""
        if twins:
            self.forget([row["id"] for row in twins])
            self.unlock([], [row["key_lock"] for row in twins])

    def _owner(self) -> dict[str, Any]:
        return {"pid": self.owner[0], "start": self.owner[1]}

    def _run(self, statement: str, values: dict[str, Any]) -> list[Any]:
        cursor = self.connection.execute(self.names.sql(statement), values, prepare=True)
        return cursor.fetchall() if cursor.description else []


@dataclass(frozen=True)
class Busy:
    """What this process has in hand: `ids` (running, or set aside for a moment) and the `keys` that run."""

    ids: Collection[UUID]
    keys: Collection[int]


def _apart(rows: list[dict[str, Any]], keys: Collection[int]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows to run, and twins of a key that runs here already: session locks are re-entrant and let both through."""
    ours, twins, taken = [], [], set(keys)
    for row in rows:
        if row["key_lock"] in taken:
            twins.append(row)
            continue
        ours.append(row)
        if row["key_lock"] is not None:
            taken.add(row["key_lock"])
    return ours, twins


def _keys(jobs: Iterable[Claimed]) -> list[int]:
    return [job.key_lock for job in jobs if job.key_lock is not None]


def _claimed(row: dict[str, Any]) -> Claimed:
    interrupted = row["old_pid"] is not None and row["old_begun"]
    doubtful = row["old_pid"] is not None or (row["last_error"] or "").startswith(INTERRUPTED)
    return Claimed(row, interrupted, doubtful and not interrupted)
