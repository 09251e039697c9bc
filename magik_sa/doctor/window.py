"""A database watched for some seconds: a first look, many short ones, and a last."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Row

from ..asking import Asking, Unanswered
from ..status import status
from ..status.figures import Queue

PAUSE: Final = 0.1  # seconds between two looks

# Positions in the WAL are seen by everybody; a standby writes none.
WRITTEN: Final = """
SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float END AS bytes"""

# Statements of other roles have no text without pg_read_all_stats. What lies in which schema, the catalog knows.
STATEMENTS: Final = (
    "SELECT extnamespace::regnamespace::text AS place FROM pg_extension WHERE extname = 'pg_stat_statements'"
)
OF_JOBS: Final = """
SELECT coalesce(sum(wal_bytes) FILTER (WHERE query ~ '\\ymagik_(jobs|claims|workers)\\y'), 0)::float AS bytes,
       bool_or(query = '<insufficient privilege>') AS hidden, quote_ident(current_user) AS me
  FROM {{place}}.pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"""

# Waiting for a file or for the WAL, while the job table is being cleaned.
SESSIONS: Final = """
SELECT count(*) FILTER (WHERE wait_event LIKE 'MultiXact%') AS multixact,
       count(*) FILTER (WHERE wait_event_type = 'IO' AND coalesce(backend_type, '') = 'client backend') AS reading,
       bool_or(wait_event_type IS NULL AND state IS NULL AND usename <> current_user
               AND NOT pg_has_role('pg_read_all_stats', 'USAGE')) AS hidden,
       EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.datname = current_database() AND v.relid = :oid) AS vacuum,
       quote_ident(current_user) AS me
  FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename IS NOT NULL"""


@dataclass
class Window:
    """What was seen. `queues` at the begin and at the end; WAL in bytes, None where it is not visible."""

    seconds: float
    sessions: Sequence[Row[Any]] = ()
    queues: tuple[Sequence[Queue], Sequence[Queue]] = ((), ())
    written: float | None = None
    by_jobs: float | None = None
    unseen: dict[str, str] = field(default_factory=dict)  # why


def watch(asking: Asking, seconds: float) -> Window:
    """Look for so long. Raises `Unanswered` where not even the sessions can be seen."""
    window, start = Window(seconds), time.monotonic()
    before = _wal(asking, window)
    queues = status(asking).queues or ()
    window.sessions = _looks(asking, start + seconds)
    window.queues, after = (queues, status(asking).queues or ()), _wal(asking, window)
    window.seconds = time.monotonic() - start
    window.written, window.by_jobs = (_grown(*pair) for pair in zip(before, after, strict=True))
    return window


def _looks(asking: Asking, end: float) -> list[Row[Any]]:
    looks = [asking.one(SESSIONS, oid=asking.oid)]
    while time.monotonic() < end:
        time.sleep(PAUSE)
        looks.append(asking.one(SESSIONS, oid=asking.oid))
    return looks


def _wal(asking: Asking, window: Window) -> tuple[float | None, float | None]:
    """What was written up to now: by everybody, and by statements on the tables of the queue."""
    return asking.one(WRITTEN).bytes, _by_jobs(asking, window)


def _by_jobs(asking: Asking, window: Window) -> float | None:
    try:
        if not (found := asking.ask(STATEMENTS)):
            raise Unanswered("pg_stat_statements is not installed in this database")
        row = asking.one(OF_JOBS.replace("{{place}}", found[0].place))
        if row.hidden:
            raise Unanswered(f"the statements of other roles are hidden from the role {row.me}")
        return float(row.bytes)
    except Unanswered as why:
        window.unseen["wal"] = str(why)
        return None


def _grown(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
