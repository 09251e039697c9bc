"""The walk: candidates in the order of the claim index, locked one at a time, from the marks on."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg

from ..ids import Ids
from ..names import Names
from ..priorities import PAUSED, PRIORITIES
from ..rows import read_near
from ..unreadable import EARLIEST, NEAREST
from .claimed import Claimed
from .marks import FULL_EVERY, START, Budget, Found, Marks, Place

# Candidates of a priority stream from its mark on. The lock is tried above the fences (OFFSET 0), one row at a time,
# and the LIMIT stands above the lock, so exactly as many locks are taken as rows come back. Without a fence, or with
# the lock in the inner WHERE, a plan that sorts locks every row of the table before it returns one, and fills the
# server's lock table for everybody. job_class is tested inside the fences: rows of unknown classes cost no lock. Ids
# in flight here are left out, because session locks are re-entrant.
#
# A mark in the future (the server's clock was put back) counts as one at the edge. The rows after the locked ones
# tell of the priorities that a full walk saw, and of the edge: where marks may stand at most. Of a paused queue nothing
# has been walked past, so its marks go back to the start.
WALK = (
    PRIORITIES
    + f"""
(SELECT id, priority, {NEAREST.format("run_at")} FROM (
  SELECT m.id, m.priority, m.run_at
    FROM p
    CROSS JOIN LATERAL (
      SELECT (%(times)s::timestamptz[])[array_position(%(priorities)s::int[], p.priority)] AS run_at,
             (%(ids)b::uuid[])[array_position(%(priorities)s::int[], p.priority)] AS id) mark
    CROSS JOIN LATERAL (
      SELECT j.id, j.priority, j.run_at FROM {{jobs}} j
       WHERE j.queue = %(queue)s AND j.priority = p.priority AND j.finished_at IS NULL AND j.expired_at IS NULL
         AND j.run_at <= now() AND j.job_class = ANY(%(known)s) AND j.id <> ALL(%(held)b::uuid[])
         AND (j.run_at, j.id) > (
               least(coalesce(mark.run_at, '-infinity'), now() - interval '1 s'),
               CASE WHEN mark.run_at <= now() - interval '1 s' THEN mark.id
                    ELSE '00000000-0000-0000-0000-000000000000' END)
       ORDER BY j.run_at, j.id
      OFFSET 0) m
  OFFSET 0) c
 WHERE pg_try_advisory_lock(uuid_hash_extended(id, %(oid)s)) LIMIT %(n)s)
UNION ALL
SELECT NULL, priority, NULL FROM p WHERE %(full)s AND priority >= -32768
UNION ALL
SELECT NULL, NULL, CASE WHEN {PAUSED} THEN '{EARLIEST.isoformat()}' ELSE now() - interval '1 s' END"""
)
BEHIND = timedelta(seconds=1)  # that the edge is behind now()


class Walks:
    """The walks of one life of a locking connection: they begin without marks, and with a full one."""

    def __init__(self, connection: psycopg.Connection[Any], names: Names, full_every: float = FULL_EVERY) -> None:
        self._connection, self._names, self._every = connection, names, full_every
        self._budget = Budget()
        self._marks: dict[str, Marks] = {}
        self._looked_at: dict[str, datetime | None] = {}

    def walk(self, queue: str, n: int, known: Collection[str], held: Collection[UUID]) -> list[UUID]:
        """Lock up to `n` candidates. Where they are fewer, something may lie before a mark: the full walk follows."""
        marks = self._of(queue)
        if marks.is_due():
            return self._walk(queue, n, known, held, full=True)
        ids = self._walk(queue, n, known, held, full=False)
        if len(ids) < n:
            marks.owe()
            if marks.is_due():
                ids += self._walk(queue, n - len(ids), known, [*held, *ids], full=True)
        return ids

    def owe(self, queues: Iterable[str]) -> None:
        """Something may lie before the marks of these queues."""
        for queue in queues:
            self._of(queue).owe()

    def insist(self, queues: Iterable[str]) -> None:
        """A worker has died: what it held may lie there, and its jobs are not to wait."""
        for queue in queues:
            self._of(queue).insist()

    def seconds_to_full(self) -> float | None:
        """Until a full walk that is owed; None where none is."""
        return min((left for marks in self._marks.values() if (left := marks.seconds()) is not None), default=None)

    def step_back(self, jobs: Iterable[Claimed]) -> None:
        """These have been walked past, and are to be found again."""
        for job in jobs:
            self._of(job.row["queue"]).step_back(Found(job.id, job.row["priority"], job.row["run_at"]))

    def priorities(self, queue: str) -> list[int]:
        """Those that are known there."""
        return list(self._of(queue).places)

    def looked_at(self, queue: str) -> datetime | None:
        """The moment up to which the last walk saw what is due there; None before the first, and of a paused queue."""
        return self._looked_at.get(queue)

    def _of(self, queue: str) -> Marks:
        if queue not in self._marks:
            self._marks[queue] = Marks(self._budget, self._every)
        return self._marks[queue]

    def _walk(self, queue: str, n: int, known: Collection[str], held: Collection[UUID], *, full: bool) -> list[UUID]:
        marks, began = self._of(queue), time.monotonic()
        values = {"queue": queue, "n": n, "known": list(known), "held": Ids(held), "full": full}
        values |= {"oid": self._names.oid, **_spelt(dict.fromkeys(marks.places, START) if full else marks.places)}
        cursor = self._connection.cursor()
        read_near(cursor)
        rows = cursor.execute(self._names.sql(WALK), values, prepare=True).fetchall()
        cost, found = time.monotonic() - began, [Found(*row) for row in rows if row[0] is not None]
        if full:
            marks.walked_in_full([priority for id, priority, _ in rows if id is None and priority is not None], cost)
        (edge,) = (run_at for _, priority, run_at in rows if priority is None)
        marks.move(found, len(found) < n, edge)
        self._looked_at[queue] = None if edge <= EARLIEST else edge + BEHIND
        return [row.id for row in found]


def _spelt(places: dict[int, Place]) -> dict[str, Any]:
    """The marks as the statement takes them. The first moment that Python can hold stands for any before it."""
    times = ["-infinity" if place.run_at <= EARLIEST else place.run_at.isoformat() for place in places.values()]
    ids = [START.id if place.run_at <= EARLIEST else place.id for place in places.values()]
    return {"priorities": list(places), "times": times, "ids": ids}
