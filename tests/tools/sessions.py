"""Other sessions of the server: found, counted, ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

_SESSIONS = """
SELECT a.pid FROM pg_stat_activity a
 WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
   AND (%(name)s::text IS NULL OR a.application_name LIKE %(name)s)
   AND (%(query)s::text IS NULL OR a.query ILIKE %(query)s)
   AND (%(lock)s::text IS NULL OR EXISTS (
        SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.granted AND
          CASE %(lock)s WHEN 'advisory' THEN l.locktype = 'advisory'
                        ELSE l.relation = to_regclass(%(lock)s) END))
 ORDER BY a.pid
"""
_ADVISORY = """
SELECT l.objsubid, count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
 WHERE l.locktype = 'advisory' AND l.granted AND a.datname = current_database()
   AND (%(name)s::text IS NULL OR a.application_name LIKE %(name)s)
   AND (%(pid)s::int IS NULL OR l.pid = %(pid)s)
 GROUP BY 1
"""
LAST = "the last word"
ONE_KEY, TWO_KEYS = 1, 2  # what pg_locks.objsubid says of a bigint key, and of a pair of integers


def pids(
    dsn: str, application_name: str | None = None, *, query: str | None = None, lock: str | None = None
) -> list[int]:
    """The other sessions of this database, chosen by LIKE patterns of their application's name and query.

    `lock` is ``"advisory"`` or the name of a table on which the session holds a lock.
    """
    rows = _rows(dsn, _SESSIONS, {"name": application_name, "query": query, "lock": lock})
    return [pid for (pid,) in rows]


def terminate(
    dsn: str, application_name: str | None = None, *, query: str | None = None, lock: str | None = None
) -> list[int]:
    """End those sessions; returns their process ids. Ask `pids` again to see when they are gone."""
    chosen = pids(dsn, application_name, query=query, lock=lock)
    _rows(dsn, "SELECT pg_terminate_backend(pid) FROM unnest(%(pids)s::int[]) pid", {"pids": chosen})
    return chosen


def advisory_locks(dsn: str, application_name: str | None = None, *, pid: int | None = None) -> dict[int, int]:
    """How many advisory locks are held in this database, by `ONE_KEY` (jobs) and `TWO_KEYS` (flags of queues)."""
    held = dict(_rows(dsn, _ADVISORY, {"name": application_name, "pid": pid}))
    return {ONE_KEY: held.get(ONE_KEY, 0), TWO_KEYS: held.get(TWO_KEYS, 0)}


def heard(dsn: str, connection: psycopg.Connection[Any], channel: str) -> list[str]:
    """What this one has been notified of by now, and has not taken yet: all that comes before a last word of ours."""
    _rows(dsn, "SELECT pg_notify(%(channel)s, %(last)s)", {"channel": channel, "last": LAST})
    payloads = list[str]()
    for note in connection.notifies(timeout=20):
        if note.payload == LAST:
            return payloads
        payloads.append(note.payload)
    raise AssertionError(f"nothing but {payloads} within 20 s")


def _rows(dsn: str, query: str, values: dict[str, Any]) -> Sequence[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True, application_name="sessions") as connection:
        return connection.execute(query.encode(), values).fetchall()
