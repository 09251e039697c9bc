"""Wake-up: NOTIFY is a hint to look, never an assignment; polling is the safety net.

NOTIFY takes one lock of the whole database through the commit's fsync, so ten producers that all notify fall
back to the rate of one. Therefore a producer notifies only while a worker waits. That a worker waits is said by
an advisory lock, the *flag* of the queue: the idle worker holds it exclusively, the enqueueing transaction's
trigger tries it shared and notifies only when refused.

No wake-up is lost, because a commit becomes visible before its locks are released: once the worker has the
flag, every row that was not notified is visible to the poll that follows.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

import psycopg

from .names import Names
from .priorities import PAUSED, PRIORITIES

Connection = psycopg.Connection[Any]

HINT_EVERY = timedelta(milliseconds=400)
PAUSES = ""  # what is notified where queues were paused or resumed; no queue is called so

# The flag's key: two ints, so it can never be one of the jobs' keys, which are one bigint. The same expression
# stands in the trigger. (oid::int, not ::bigint::int: an oid above 2^31 wraps instead of failing.)
#
# For a paused queue nobody raises one: else each of its producers would notify, for nothing, until it is resumed.
RAISE_FLAG = f"SELECT pg_try_advisory_lock(%(oid)s::oid::int, hashtext(%(queue)s)) WHERE NOT {PAUSED}"
LOWER_FLAG = "SELECT pg_advisory_unlock(%(oid)s::oid::int, hashtext(%(queue)s))"

# Refused: is it a waiting peer, who holds the flag exclusively, or an open producer, who holds it shared?
# A shared try tells, and gives back at once what it got.
SHARE_FLAG = """
SELECT CASE WHEN pg_try_advisory_lock_shared(%(oid)s::oid::int, hashtext(%(queue)s))
            THEN pg_advisory_unlock_shared(%(oid)s::oid::int, hashtext(%(queue)s)) ELSE false END"""

# When is the next job due, of those that were not when the queue was last walked? From its own now() on it would miss
# one whose time came in between, as the walk did. Priority by priority, each step one look into the claim index: a
# plain min(run_at) reads every future row (100 ms at 200,000 rows, against 0.4-4).
NEXT_RUN_AT = (
    PRIORITIES
    + """
SELECT extract(epoch FROM
         min((SELECT j.run_at FROM {jobs} j
               WHERE j.queue = %(queue)s AND j.finished_at IS NULL AND j.expired_at IS NULL
                 AND j.priority = p.priority AND j.run_at > least(now(), %(walked)s::timestamptz)
                 AND j.run_at < now() + interval '1 day'
                 AND j.job_class = ANY(%(known)s)
               ORDER BY j.run_at LIMIT 1)) - clock_timestamp())
  FROM p"""
)

# Which of these queues are paused.
PAUSED_OF = "SELECT name FROM {queues} WHERE name = ANY(%(queues)s)"

# A killed worker frees its locks but tells nobody. Whoever is idle deletes the row of a session that is gone:
# exactly one asker gets it, sweeps the notes of jobs that are gone too, and notifies that worker's queues.
# (backend_start is NULL to a role without pg_monitor, hence the coalesce: the pid alone then decides.) A pooler may
# give a dead worker's session to the next, which is asked for by %(new)s: a row of its own from before is another's.
# The notes are looked at only where a worker is gone, and their jobs one by one (OFFSET 0 keeps that from becoming a
# join): both tables may be full of dead rows that an old snapshot keeps, and of which the planner knows nothing.
# A name that no queue can have is left out: of a row by hand it may be longer than a notification, whose error would be
# every worker's, at every look.
HINT = """
WITH dead AS (
  DELETE FROM {workers} w
   WHERE NOT EXISTS (SELECT FROM pg_stat_activity a
                      WHERE a.pid = w.backend_pid AND coalesce(a.backend_start = w.backend_start, true)
                        AND NOT (%(new)s AND a.pid = pg_backend_pid()))
  RETURNING backend_pid, backend_start, queues),
swept AS (
  DELETE FROM {claims} c USING dead
   WHERE (SELECT true FROM dead LIMIT 1)
     AND c.backend_pid = dead.backend_pid AND c.backend_start = dead.backend_start
     AND NOT EXISTS (SELECT FROM {jobs} j
                      WHERE j.id = c.job_id AND coalesce(j.finished_at, j.expired_at) IS NULL OFFSET 0))
SELECT count(pg_notify(%(channel)s, q)) FROM (SELECT DISTINCT unnest(queues) AS q FROM dead) d
 WHERE octet_length(q) BETWEEN 1 AND 255"""

REGISTER = """
INSERT INTO {workers} (backend_pid, backend_start, name, queues, threads, pool)
SELECT pid, backend_start, %(name)s, %(queues)s, %(threads)s, %(pool)s
  FROM pg_stat_activity WHERE pid = pg_backend_pid()
RETURNING backend_pid, backend_start"""

# After a reconnect: the session before may not know yet that it is dead, and would keep the locks. Waits up to 2 s.
# Behind a pooler it may be somebody else's meanwhile, or this one. It is still ours if it has our name, an advisory
# lock, and the row that we wrote: another worker has written its own there before it takes a lock.
END_SESSION = """
SELECT pg_terminate_backend(a.pid, 2000)
  FROM pg_stat_activity a JOIN {workers} w ON w.backend_pid = a.pid AND w.backend_start = a.backend_start
 WHERE a.pid = %(pid)s AND a.backend_start = %(start)s AND a.pid <> pg_backend_pid() AND w.name = %(name)s
   AND a.application_name = current_setting('application_name')
   AND EXISTS (SELECT FROM pg_locks l
                WHERE l.pid = a.pid AND l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted)"""

UNREGISTER = "DELETE FROM {workers} WHERE backend_pid = %(pid)s AND backend_start = %(start)s"


class Flag(Enum):
    """Who has the flag of a queue: this worker, a waiting peer, a producer in mid-transaction; or it is paused."""

    OURS = "ours"
    PEER = "peer"
    PRODUCER = "producer"
    PAUSED = "paused"


def raise_flag(connection: Connection, names: Names, queue: str) -> Flag:
    """Try to say that this worker waits for `queue`."""
    key = {"oid": names.oid, "queue": queue}
    if (raised := _one(connection, names.sql(RAISE_FLAG), key)) is None:
        return Flag.PAUSED
    if raised:
        return Flag.OURS
    return Flag.PRODUCER if _one(connection, names.sql(SHARE_FLAG), key) else Flag.PEER


def lower_flag(connection: Connection, names: Names, queue: str) -> None:
    """Stop saying so: producers need not notify while jobs are being found anyway."""
    _one(connection, names.sql(LOWER_FLAG), {"oid": names.oid, "queue": queue})


def seconds_to_next(
    connection: Connection,
    names: Names,
    queue: str,
    known: Collection[str],
    priorities: Collection[int] = (),
    walked: datetime | None = None,
) -> float | None:
    """Seconds (by the database's clock) until the next scheduled job of `queue` within a day, or None.

    `priorities` are those that are known to be in use there; any other is found too. Less than 0 for one whose time has
    come since the queue was `walked`.
    """
    values = {"queue": queue, "known": list(known), "priorities": list(priorities), "walked": walked}
    left = _one(connection, names.sql(NEXT_RUN_AT), values)
    return None if left is None else float(left)


def paused(connection: Connection, names: Names, queues: Collection[str]) -> set[str]:
    """Those of these queues that are paused."""
    rows = connection.execute(names.sql(PAUSED_OF), {"queues": list(queues)}, prepare=True)
    return {row[0] for row in rows}


def notify(connection: Connection, names: Names, queues: Collection[str]) -> None:
    """Ask the other workers of these queues to look."""
    connection.execute("SELECT pg_notify(%s, q) FROM unnest(%s::text[]) q", (names.channel, list(queues)))


def hint(connection: Connection, names: Names) -> int:
    """Notice sessions of workers that are gone; the number of queues notified for them."""
    return int(_one(connection, names.sql(HINT), {"channel": names.channel, "new": False}))


def register(
    connection: Connection,
    names: Names,
    name: str,
    queues: Collection[str],
    threads: int | None = None,
    pool: int | None = None,
) -> tuple[int, Any]:
    """Write this worker's row; (backend_pid, backend_start), which name the owner of its notes.

    `threads` need a connection each, of which its pool has `pool`: None is without a limit.

    Whoever had this very session before is dead. What it has noted of its jobs tells of their interruption as ever.
    """
    _one(connection, names.sql(HINT), {"channel": names.channel, "new": True})
    values = {"name": name, "queues": list(queues), "threads": threads, "pool": pool}
    row = connection.execute(names.sql(REGISTER), values).fetchone()
    assert row is not None
    return row[0], row[1]


def unregister(connection: Connection, names: Names, owner: tuple[int, Any]) -> None:
    """Take this worker's row away at an orderly end."""
    connection.execute(names.sql(UNREGISTER), {"pid": owner[0], "start": owner[1]})


def end_session(connection: Connection, names: Names, owner: tuple[int, Any], name: str) -> None:
    """Have the server end a session of ours that we have lost, so that its locks are free to be taken again."""
    _one(connection, names.sql(END_SESSION), {"pid": owner[0], "start": owner[1], "name": name})


def _one(connection: Connection, statement: bytes, values: dict[str, Any]) -> Any:
    row = connection.execute(statement, values, prepare=True).fetchone()
    return row[0] if row else None
