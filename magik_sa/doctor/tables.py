"""The tables: their version, what is missing of them, and who stands in the way of their rows."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Row

from ..asking import Unanswered
from ..errors import REMEDIES
from ..migrations import HEAD, VERSIONS
from ..migrations.drift import PRESENT, Lack, lacking
from .finding import SEE_ALL, Finding, Severity, Subject, span

SHOWN: Final = 4  # named in a sentence; the others are counted

# Who waits for a row of a job holds the lock on its tuple meanwhile, or waits for that; who waits for the whole table
# has asked for it. Both are seen by every role, with the time of waiting; what the one in the way is doing is not.
WAITING: Final = """
WITH ours AS (SELECT c.oid FROM pg_class c JOIN pg_class jobs USING (relnamespace)
               WHERE jobs.oid = :oid AND c.relname IN ('magik_jobs', 'magik_job_schedules'))
SELECT extract(epoch FROM clock_timestamp() - w.waitstart)::float AS seconds, w.pid AS waiting, b.pid,
       a.application_name AS application, a.usename AS role, a.state,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float AS open, quote_ident(current_user) AS me
  FROM pg_locks w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) b (pid)
  LEFT JOIN pg_stat_activity a ON a.pid = b.pid
 WHERE NOT w.granted AND w.waitstart < clock_timestamp() - make_interval(secs => :limit)
   AND w.database IS NOT DISTINCT FROM CASE WHEN w.locktype = 'transactionid' THEN NULL
                                            ELSE (SELECT oid FROM pg_database WHERE datname = current_database()) END
   AND (w.relation IN (SELECT oid FROM ours)
        OR w.locktype = 'transactionid'
           AND w.pid IN (SELECT t.pid FROM pg_locks t
                          WHERE t.locktype = 'tuple' AND t.relation IN (SELECT oid FROM ours)))
 ORDER BY 1 DESC"""


def schema_version(subject: Subject) -> Finding:
    """Whether this release works with the tables as they are; its workers refuse to start otherwise."""
    version = subject.asking.version()
    said, measured = (
        f"the tables are of version {version}, this release knows {HEAD}",
        {"installed": version, "known": HEAD},
    )
    if version == HEAD:
        return Finding("schema_version", Severity.OK, said, measured)
    code = "MAGIK_SCHEMA_BEHIND" if version < HEAD else "MAGIK_SCHEMA_AHEAD"
    return Finding(
        "schema_version", Severity.CRITICAL, said, measured, f"Workers refuse to start: {code}.", REMEDIES[code]
    )


def schema_drift(subject: Subject) -> Finding:
    """What is missing of the tables: columns, constraints, indexes, triggers, functions."""
    if (version := subject.asking.version()) != HEAD:
        raise Unanswered(f"the tables of version {version} are compared once they are of version {HEAD}")
    module = VERSIONS[version]
    rows = subject.asking.ask(PRESENT, oid=subject.asking.oid, tables=list(module.PARTS["table"]))
    found = [*lacking(module, {(row.kind, row.of, row.name): row.state for row in rows})]
    if not found:
        return Finding("schema_drift", Severity.OK, "nothing is missing", {"lacking": []})
    cause = (
        "Somebody has changed the tables by hand, or restored a part of them: statements of workers fail, or get slow."
    )
    remedy = "Put back what is missing, with the privileges of the tables' owner."
    measured = {"lacking": [{"kind": lack.kind, "name": lack.name, "state": lack.state} for lack in found]}
    sql = tuple(lack.sql for lack in found)
    return Finding("schema_drift", Severity.CRITICAL, _named(found), measured, cause, remedy, sql)


def _named(found: list[Lack]) -> str:
    named = ", ".join(f"{lack.kind} {lack.name} ({lack.state})" for lack in found[:SHOWN])
    return named if len(found) <= SHOWN else f"{named} and {len(found) - SHOWN} more"


def blocked_rows(subject: Subject) -> Finding:
    """Who keeps others waiting for the row of a job or a schedule, or for their tables."""
    limit = subject.limits.blocked.total_seconds()
    rows = subject.asking.ask(WAITING, oid=subject.asking.oid, limit=limit)
    if not rows:
        return Finding(
            "blocked_rows", Severity.OK, f"nobody has waited for a row of jobs for {span(limit)}", {"blocking": []}
        )
    said = "; ".join(_told(row) for row in rows[:SHOWN])
    names = ("pid", "application", "role", "state", "waiting", "seconds")
    measured = {"blocking": [{name: getattr(row, name) for name in names} for row in rows]}
    cause = "It has touched the row in a transaction that is still open; whoever changes or ends the job waits for it."
    remedy = "End that transaction in its program, or here."
    if any(row.open is None for row in rows):
        remedy += f" {SEE_ALL.format(role=rows[0].me)}"
    sql = tuple(dict.fromkeys(f"SELECT pg_terminate_backend({row.pid})" for row in rows))
    return Finding("blocked_rows", Severity.WARNING, said, measured, cause, remedy, sql)


def _told(row: Row[Any]) -> str:
    since = "for an unknown time" if row.open is None else f"for {span(row.open)}"
    return (
        f"process {row.pid} ({row.application or 'no name'}, role {row.role}), {row.state or 'state unknown'}, open"
        f" {since}, blocks process {row.waiting} for {span(row.seconds)}"
    )
