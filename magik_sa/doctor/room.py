"""What the server has room for: connections, and entries in its lock table. Both are shared with everybody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Row

from ..asking import Unanswered
from .finding import Finding, Severity, Subject

# Application names can be seen by every role. A session of another role does not show what kind it is, but only those
# with a database and a user count, and of these the kinds that have room of their own are few.
SESSIONS: Final = """
SELECT coalesce(nullif(application_name, ''), 'no name') AS application,
       count(*) AS sessions, count(*) FILTER (WHERE datname = current_database()) AS here,
       current_setting('max_connections')::int AS max,
       current_setting('superuser_reserved_connections')::int
         + coalesce(nullif(current_setting('reserved_connections', true), ''), '0')::int AS reserved
  FROM pg_stat_activity
 WHERE datname IS NOT NULL AND usename IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend'
 GROUP BY 1 ORDER BY 2 DESC, 1"""

# One entry for each lock and its holder; those on a fast path take none, and predicate locks have a table of their own.
# It is made for max_locks_per_transaction locks a connection, and shared: one session may take nearly all of it.
LOCKS: Final = """
SELECT count(*) AS held, count(*) FILTER (WHERE locktype = 'advisory') AS advisory,
       current_setting('max_locks_per_transaction')::bigint
         * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint) AS room,
       mode() WITHIN GROUP (ORDER BY pid) AS most, quote_ident(current_user) AS me
  FROM pg_locks WHERE NOT fastpath AND mode <> 'SIReadLock'"""
HOLDER: Final = """
SELECT a.application_name AS application, (SELECT count(*) FROM pg_locks WHERE pid = :pid AND NOT fastpath) AS locks
  FROM pg_stat_activity a WHERE a.pid = :pid"""
QUEUES: Final = """
SELECT coalesce(sum(cardinality(w.queues)), 0)::int AS queues FROM {schema}magik_workers w
  JOIN pg_stat_activity a ON a.pid = w.backend_pid AND coalesce(a.backend_start = w.backend_start, true)"""

POOLS: Final = """
SELECT w.name, w.threads, w.pool FROM {schema}magik_workers w
  JOIN pg_stat_activity a ON a.pid = w.backend_pid AND coalesce(a.backend_start = w.backend_start, true)
 WHERE w.threads IS NOT NULL ORDER BY w.pool - w.threads DESC NULLS LAST, w.name"""

SUM: Final = (
    "{sessions} of {room} (max_connections {max_connections} less those reserved): {lockers} lockers and {performers}"
    " performers of workers here, {others} others"
)
FULL: Final = "When max_connections is reached, workers cannot start or reconnect, and nobody else can connect either."
FEWER: Final = (
    "Close what is not needed (most are of {most}), lower --concurrency (a worker has as many connections as its log"
    " line event=ready says), or raise max_connections."
)

SURPLUS: Final = (
    "A worker uses one connection of its engine's pool for each thread. In what there is beyond that only jobs can open"
    " more, which nobody has reckoned with: they count against max_connections, and the pool keeps them open."
)
SHOWN: Final = 4

LOCKER: Final = " locker"
PERFORMER: Final = " performer"


def connections(subject: Subject) -> Finding:
    """Sessions of workers and of others, this one included, beside what max_connections leaves to them."""
    rows = subject.asking.ask(SESSIONS)
    measured = _sessions(rows)
    said = SUM.format(**measured)
    severity = _severity(measured["sessions"] / measured["room"], subject.limits.connections, 0.95)
    if severity is Severity.OK:
        return Finding("connections", severity, said, measured)
    return Finding("connections", severity, said, measured, FULL, FEWER.format(most=rows[0].application))


def _sessions(rows: Sequence[Row[Any]]) -> dict[str, Any]:
    here, total, most = _by_kind(rows), sum(row.sessions for row in rows), rows[0].max
    return {
        "sessions": total,
        "room": most - rows[0].reserved,
        "max_connections": most,
        **here,
        "others": total - here["lockers"] - here["performers"],
        "by_application": {row.application: row.sessions for row in rows},
    }


def _by_kind(rows: Sequence[Row[Any]]) -> Counter[str]:
    """A worker with Sessions of the application's puts the word behind the application's own name."""
    kinds = Counter(lockers=0, performers=0)
    for row in rows:
        kinds["lockers"] += row.here if row.application.endswith(LOCKER) else 0
        kinds["performers"] += row.here if row.application.endswith(PERFORMER) else 0
    return kinds


def pools(subject: Subject) -> Finding:
    """Workers whose pool gives more connections than their threads need. One that gives fewer does not start."""
    rows = subject.asking.ask(POOLS)
    measured = {"workers": [{"name": row.name, "threads": row.threads, "pool": row.pool} for row in rows]}
    larger = [row for row in rows if row.pool is not None and row.pool > row.threads]
    if not larger:
        said = f"none of {len(rows)} workers has a pool of more connections than it has threads for"
        return Finding("pools", Severity.OK, said, measured)
    said = "; ".join(
        f"the pool of the worker {row.name} gives {row.pool} connections, and it has threads for {row.threads}"
        for row in larger[:SHOWN]
    )
    needed = "; ".join(f"pool_size={row.threads}, max_overflow=0 for {row.name}" for row in larger[:SHOWN])
    remedy = f"Make the engine behind --session for the worker ({needed}), or raise --concurrency to what it gives."
    return Finding("pools", Severity.NOTE, said, measured, SURPLUS, remedy)


def locks(subject: Subject) -> Finding:
    """Locks held now, and those that workers may hold, beside what the server's lock table was made for."""
    row = subject.asking.one(LOCKS)
    workers = may_hold(subject)
    shown = "an unknown number" if workers is None else f"{workers:,}"
    said = (
        f"{row.held:,} of {row.room:,} (max_locks_per_transaction for each of max_connections), {row.advisory:,} of"
        f" them advisory; workers here may hold {shown}"
    )
    measured = {"held": row.held, "room": row.room, "advisory": row.advisory, "workers_may_hold": workers}
    severity = _severity(max(row.held, workers or 0) / row.room, subject.limits.locks, 0.8)
    if severity is Severity.OK:
        return Finding("locks", severity, said, measured)
    cause = 'When the lock table is full, statements fail for everybody on the server with "out of shared memory".'
    remedy = "Raise max_locks_per_transaction (the server has to be restarted), or run fewer workers."
    if row.held > (workers or 0):
        remedy = f"{_most(subject, row)} {remedy}"
    return Finding("locks", severity, said, measured, cause, remedy)


def may_hold(subject: Subject) -> int | None:
    """One lock a running job and one on its key, and one flag for each queue that a worker works."""
    performers = _by_kind(subject.asking.ask(SESSIONS))["performers"]
    try:
        return 2 * performers + int(subject.asking.one(QUEUES).queues)
    except Unanswered:
        return None


def _most(subject: Subject, row: Row[Any]) -> str:
    holders = subject.asking.ask(HOLDER, pid=row.most)
    named = "".join(
        f"Process {row.most} ({each.application or 'no name'}) holds {each.locks:,}: let it end." for each in holders
    )
    return named or f"Process {row.most} held most of them."


def _severity(share: float, warning: float, critical: float) -> Severity:
    if share < warning:
        return Severity.OK
    return Severity.WARNING if share < critical else Severity.CRITICAL
