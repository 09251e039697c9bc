"""What a role has to be granted, and what it lacks of it: the catalogs, which everybody may read, tell all at once.

docs/grants.md has the statements for each role; a test takes every one of them away and sees what fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import psycopg
from sqlalchemy import Connection

from .errors import BootError
from .harmless import harmless
from .settings import schema

ALL: Final = "SELECT, INSERT, UPDATE, DELETE"


@dataclass(frozen=True)
class Needs:
    """What one connection does: with which tables (or columns of one), and by which of the server's functions.

    `own_sessions`: it looks for its login's other sessions, and ends those that it has lost.
    """

    tables: Mapping[str, str]
    columns: Mapping[str, Sequence[str]]
    functions: Sequence[str] = ()
    own_sessions: bool = False


# Everybody may execute these, unless somebody has taken that away.
LOCKING: Final = Needs(
    {"magik_jobs": "SELECT", "magik_claims": ALL, "magik_workers": ALL, "magik_queues": "SELECT"},
    {},
    (
        "pg_try_advisory_lock(bigint)",
        "pg_advisory_unlock(bigint)",
        "pg_try_advisory_lock(integer, integer)",
        "pg_advisory_unlock(integer, integer)",
        "pg_try_advisory_lock_shared(integer, integer)",
        "pg_advisory_unlock_shared(integer, integer)",
        "hashtext(text)",
        "hashtextextended(text, bigint)",
        "uuid_hash_extended(uuid, bigint)",
        "pg_notify(text, text)",
        "pg_terminate_backend(integer, bigint)",
    ),
    own_sessions=True,
)
PERFORMING: Final = Needs(
    {"magik_jobs": ALL, "magik_job_schedules": ALL, "magik_effects": "INSERT", "magik_schema": "SELECT"},
    {},
    ("hashtext(text)", "pg_notify(text, text)", "pg_try_advisory_xact_lock_shared(integer, integer)"),
)
LOOKING: Final = Needs(
    dict.fromkeys(
        ("magik_jobs", "magik_claims", "magik_workers", "magik_queues", "magik_job_schedules", "magik_schema"), "SELECT"
    ),
    {
        "magik_jobs": (
            *("id", "job_class", "queue", "priority", "run_at"),
            *("enqueued_at", "error_count", "finished_at", "expired_at"),
        )
    },
)

# Where the tables are: as the search_path leads, and where no schema in it that this role may use has them, the first
# that it may not use. A privilege on all columns is as good as one on the table. Where row security holds for this role
# and no policy does, it sees no row and writes none, and the server says nothing of it.
LACKING: Final = """
WITH path AS (
  SELECT btrim(part, ' "') AS name, nth
    FROM unnest(string_to_array(current_setting('search_path'), ',')) WITH ORDINALITY p (part, nth)),
place AS (
  SELECT n.oid, n.nspname
    FROM pg_namespace n LEFT JOIN path ON n.nspname = CASE path.name WHEN '$user' THEN current_user ELSE path.name END
   WHERE CASE WHEN %(schema)s::text IS NOT NULL THEN n.nspname = %(schema)s
              ELSE path.nth IS NOT NULL
                   AND EXISTS (SELECT FROM pg_class WHERE relnamespace = n.oid AND relname = 'magik_jobs') END
   ORDER BY has_schema_privilege(n.oid, 'USAGE') DESC, path.nth LIMIT 1),
wanted AS (
  SELECT c.oid, c.relname, quote_ident(nspname) || '.' || c.relname AS name, w.columns, trim(privilege) AS privilege
    FROM unnest(%(tables)s::text[], %(privileges)s::text[], %(columns)s::text[]) w (relname, privileges, columns)
    JOIN pg_class c USING (relname) JOIN place ON c.relnamespace = place.oid,
         unnest(string_to_array(w.privileges, ',')) privilege),
ungranted AS (
  SELECT * FROM wanted
   WHERE NOT CASE WHEN privilege = 'DELETE' THEN has_table_privilege(oid, privilege)
                  ELSE (SELECT bool_and(has_column_privilege(wanted.oid, attnum, privilege)) FROM pg_attribute
                         WHERE attrelid = wanted.oid AND attnum > 0 AND NOT attisdropped
                           AND (columns = '' OR attname = ANY(string_to_array(columns, ', ')))) END),
hidden AS (
  SELECT DISTINCT relname, name FROM wanted
   WHERE row_security_active(oid) AND NOT EXISTS (
         SELECT FROM pg_policy
          WHERE polrelid = wanted.oid AND polpermissive
            AND polcmd IN ('*', CASE privilege WHEN 'SELECT' THEN 'r' WHEN 'INSERT' THEN 'a'
                                               WHEN 'UPDATE' THEN 'w' ELSE 'd' END)
            AND EXISTS (SELECT FROM unnest(polroles) r WHERE r = 0 OR pg_has_role(r, 'USAGE')))),
lacks AS (
  SELECT 1 AS nth, '' AS relname, 'USAGE on schema ' || nspname AS said,
         format('GRANT USAGE ON SCHEMA %%I TO %%I', nspname, current_user) AS sql
    FROM place WHERE NOT has_schema_privilege(oid, 'USAGE')
 UNION ALL
  SELECT 2, relname, string_agg(privilege, ', ') || ' on ' || name,
         format('GRANT %%s ON %%s TO %%I',
                string_agg(privilege || CASE columns WHEN '' THEN '' ELSE ' (' || columns || ')' END, ', '),
                name, current_user)
    FROM ungranted GROUP BY relname, name
 UNION ALL
  SELECT 3, relname, 'a policy on ' || name || ', whose row security hides every row',
         format('CREATE POLICY %%I ON %%s TO %%I USING (true)', 'magik_' || current_user, name, current_user)
    FROM hidden
 UNION ALL
  SELECT 4, '', 'EXECUTE on function ' || f, format('GRANT EXECUTE ON FUNCTION pg_catalog.%%s TO %%I', f, current_user)
    FROM unnest(%(functions)s::text[]) f WHERE NOT has_function_privilege('pg_catalog.' || f, 'EXECUTE')
 UNION ALL
  SELECT 5, '', 'sight of the sessions of ' || session_user || ', which it has logged in as',
         format('GRANT pg_read_all_stats, pg_signal_backend TO %%I', current_user)
   WHERE %(own_sessions)s AND NOT pg_has_role(session_user, 'USAGE')
     AND NOT (pg_has_role('pg_read_all_stats', 'USAGE') AND pg_has_role('pg_signal_backend', 'USAGE')))
SELECT current_user::text, relname, said, sql FROM lacks ORDER BY nth, relname, said"""


class Lack(NamedTuple):
    """What `role` lacks, said, and the statement that mends it. `table` is the table's own name, if it is one."""

    role: str
    table: str
    said: str
    sql: str


def lacking(connection: Connection | psycopg.Connection[Any], needs: Needs) -> list[Lack]:
    """All that the role of this connection lacks. Tables that are not there are not told of."""
    told = {
        "schema": schema(),
        "tables": list(needs.tables),
        "privileges": list(needs.tables.values()),
        "columns": [", ".join(needs.columns.get(name, ())) for name in needs.tables],
        "functions": list(needs.functions),
        "own_sessions": needs.own_sessions,
    }
    if isinstance(connection, psycopg.Connection):
        return [Lack(*row) for row in connection.execute(LACKING.encode(), told)]
    return [Lack(*row) for row in connection.exec_driver_sql(LACKING, told)]


def refused(lacks: Sequence[Lack]) -> BootError:
    """All of it as one error."""
    said = f"The role {lacks[0].role} lacks {'; '.join(lack.said for lack in lacks)}."
    remedy = f"As the owner of the tables, or a superuser: {'; '.join(lack.sql for lack in lacks)};"
    return BootError("MAGIK_GRANT_MISSING", harmless(said), field="database-url", remedy=harmless(remedy))
