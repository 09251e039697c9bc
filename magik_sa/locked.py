"""The bound on waiting for a lock, and who holds what is waited for."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from .errors import BootError
from .failure import sqlstate
from .home import prefix

# A lock that is not free holds up every enqueue that queues behind the one who waits for it, so the wait has a bound.
# One that the application has set already is its own business. The bound is put back at the end, as the chain's next
# revisions may run in the same transaction; what it was before is kept in a setting, because a script (--sql) has
# nowhere else to keep it.
BOUND: Final = """
SELECT set_config('magik_sa.lock_timeout', current_setting('lock_timeout'), true),
       set_config('lock_timeout', CASE current_setting('lock_timeout') WHEN '0' THEN '5s'
                                  ELSE current_setting('lock_timeout') END, true)"""
UNBOUND: Final = """
SELECT set_config('lock_timeout', coalesce(nullif(current_setting('magik_sa.lock_timeout', true), ''), '0'), true)"""

# Two at once: one does it, the other waits (not longer than the bound) and finds it done.
ALONE: Final = "SELECT pg_advisory_xact_lock(hashtext('magik_sa.migrations'))"
TRY_ALONE: Final = "SELECT pg_try_advisory_xact_lock(hashtext('magik_sa.migrations'))"

# An advisory lock of one key shows its upper half as classid and its lower half as objid.
HOLDERS: Final = """
SELECT DISTINCT pid, coalesce(nullif(application_name, ''), 'no name') FROM pg_locks JOIN pg_stat_activity USING (pid)
 WHERE granted AND pid <> pg_backend_pid()
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND (relation IN (to_regclass(:place || 'magik_jobs'), to_regclass(:place || 'magik_schema'))
        OR locktype = 'advisory' AND objsubid = 1
           AND objid::bigint = hashtext('magik_sa.migrations')::bigint & 4294967295)
 ORDER BY 1 LIMIT 3"""


def is_locked(error: DBAPIError) -> bool:
    """Whether the bound ended a wait for a lock."""
    return sqlstate(error) == "55P03"  # lock_not_available


def tables_locked(connection: Connection) -> BootError:
    """What is to be said then: who holds the tables, or another migration's lock, as far as it still does."""
    holders = connection.execute(text(HOLDERS), {"place": prefix()}).all()
    named = ", ".join(f"{pid} ({name})" for pid, name in holders) or "one that has ended since"
    fault = f"Another session holds a lock on the tables for longer than lock_timeout; process id: {named}."
    return BootError("MAGIK_TABLES_LOCKED", fault)
