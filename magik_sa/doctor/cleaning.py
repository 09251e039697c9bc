"""Whether autovacuum is allowed to clean the tables of the queue, and as the migration told it to."""

from __future__ import annotations

import re
from typing import Any, Final

from sqlalchemy import Row

from ..migrations.v001 import JOBS
from .finding import Finding, Severity, Subject, ago

OPTIONS: Final = dict(re.findall(r"(autovacuum_\w+) = (\d+)", JOBS))

# All tables of the queue's; their options as the catalog has them, which every role may read.
TABLES: Final = """
SELECT c.relname AS name, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS quoted,
       ARRAY(SELECT o FROM unnest(c.reloptions) o WHERE o LIKE 'autovacuum%') AS options,
       current_setting('autovacuum')::bool AS running, current_setting('track_counts')::bool AS counting,
       extract(epoch FROM now() - greatest(s.last_autovacuum, s.last_vacuum))::float AS cleaned,
       extract(epoch FROM now() - greatest(s.last_autoanalyze, s.last_analyze))::float AS analysed
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
 WHERE n.oid = (SELECT relnamespace FROM pg_class WHERE oid = :oid) AND c.relkind = 'r'
   AND c.relname IN ('magik_jobs', 'magik_claims', 'magik_workers', 'magik_job_schedules', 'magik_effects')
 ORDER BY c.oid <> :oid, 1"""

OFF: Final = (
    "Nothing cleans away the rows of jobs that have ended: every claim and every query reads past more of them."
)
CHANGED: Final = (
    "The migration has autovacuum count rows of the job table instead of shares of it, and not pause: a queue that is"
    " nearly always empty is cleaned as early as a full one."
)


def autovacuum(subject: Subject) -> Finding:
    """Whether it runs, on these tables, with the settings they were made with; and when it last did."""
    rows = subject.asking.ask(TABLES, oid=subject.asking.oid)
    jobs, off = rows[0], [row for row in rows if _options(row).get("autovacuum_enabled") in ("off", "false")]
    said = f"job table last cleaned {ago(jobs.cleaned)}, last analysed {ago(jobs.analysed)}"
    measured = {
        "running": jobs.running and jobs.counting,
        "off_for": [row.name for row in off],
        "options": _options(jobs),
        "last_cleaned_seconds": jobs.cleaned,
        "last_analysed_seconds": jobs.analysed,
    }
    if not measured["running"]:
        return _off_everywhere(said, measured)
    if off:
        said = f"switched off for {', '.join(row.name for row in off)}; {said}"
        sql = tuple(f"ALTER TABLE {row.quoted} RESET (autovacuum_enabled)" for row in off)
        return Finding("autovacuum", Severity.WARNING, said, measured, OFF, "Switch it on, as the tables' owner.", sql)
    if changed := sorted(name for name, value in OPTIONS.items() if _options(jobs).get(name) != value):
        return _changed(jobs, changed, said, measured)
    return Finding("autovacuum", Severity.OK, said, measured)


def _off_everywhere(said: str, measured: dict[str, Any]) -> Finding:
    remedy = "Switch it on, as a superuser; in a service, among its parameters."
    sql = (*(f"ALTER SYSTEM SET {name} = on" for name in ("autovacuum", "track_counts")), "SELECT pg_reload_conf()")
    said = f"autovacuum or track_counts is off for the whole server; {said}"
    return Finding("autovacuum", Severity.CRITICAL, said, measured, OFF, remedy, sql)


def _changed(jobs: Row[Any], changed: list[str], said: str, measured: dict[str, Any]) -> Finding:
    """Somebody may have had a reason: a note."""
    told = ", ".join(f"{name} is {_options(jobs).get(name, 'the server' + chr(39) + 's')}" for name in changed)
    sql = (f"ALTER TABLE {jobs.quoted} SET ({', '.join(f'{name} = {OPTIONS[name]}' for name in changed)})",)
    remedy = "Put it back, unless it was meant."
    return Finding("autovacuum", Severity.NOTE, f"{told}; {said}", measured, CHANGED, remedy, sql)


def _options(row: Row[Any]) -> dict[str, str]:
    return dict(option.split("=", 1) for option in row.options or ())
