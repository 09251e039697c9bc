"""What holds vacuum back and is nobody's session: transactions prepared and forgotten, standbys and their slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Row

from .finding import Finding, Severity, Subject, span

# Both views can be read by every role, and a prepared transaction may be ended by its owner only, in its database.
PREPARED: Final = """
SELECT gid, owner, extract(epoch FROM clock_timestamp() - prepared)::float AS seconds, quote_literal(gid) AS quoted
  FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared"""

# `xmin` holds back the rows of every table of every database, `catalog_xmin` only those of the catalogs (and of tables
# that are declared to be such): beside it a VACUUM of the job table leaves nothing. A standby that tells of its queries
# without a slot has them in its walsender.
SLOTS: Final = """
SELECT slot_name AS name, quote_literal(slot_name) AS quoted, slot_type AS kind, active,
       coalesce(age(xmin), 0) AS tables, coalesce(age(catalog_xmin), 0) AS catalogs
  FROM pg_replication_slots
UNION ALL
SELECT application_name, NULL, 'standby', true, age(backend_xmin), 0
  FROM pg_stat_activity
 WHERE backend_type = 'walsender' AND backend_xmin IS NOT NULL
   AND pid NOT IN (SELECT active_pid FROM pg_replication_slots WHERE active_pid IS NOT NULL)
 ORDER BY 5 DESC, 6 DESC"""

FORGOTTEN: Final = (
    "A prepared transaction lasts until somebody ends it, also over a restart: it keeps its locks, and no row that was"
    " deleted since can be cleaned away."
)
END: Final = "Commit it if what it belongs to was committed elsewhere; otherwise take it back, in this database."
HELD: Final = (
    "What a standby may still read, the server keeps: no row that was deleted since can be cleaned away. A slot does so"
    " also while nobody uses it, and keeps the WAL as well."
)
CATALOGS: Final = (
    "A subscriber reads what is old with the catalogs of that time: of those, in all databases, no row that was deleted"
    " since (with a table, a column, a temporary table) can be cleaned away. The tables of the queue are cleaned."
    " A slot that nobody uses keeps the WAL as well, until the disk is full."
)
UNUSED: Final = "Drop the slot if its standby or subscriber is gone; otherwise let it connect again."
IN_USE: Final = (
    "End the long query on the standby, or set hot_standby_feedback = off there; a subscriber has to keep up."
)
MEASURED: Final = ("name", "kind", "active", "tables", "catalogs")


def prepared_transactions(subject: Subject) -> Finding:
    """Transactions that wait for the second phase of their commit."""
    rows, limit = subject.asking.ask(PREPARED), subject.limits.oldest_transaction.total_seconds()
    measured = {"prepared": [{"gid": row.gid, "owner": row.owner, "seconds": row.seconds} for row in rows]}
    if not rows:
        return Finding("prepared_transactions", Severity.OK, "none", measured)
    oldest, old = rows[0], [row for row in rows if row.seconds >= limit]
    said = f"{len(rows)}, the oldest {oldest.gid} of the role {oldest.owner}, {span(oldest.seconds)} old"
    if not old:
        return Finding("prepared_transactions", Severity.OK, said, measured)
    severity = Severity.CRITICAL if oldest.seconds >= 12 * limit else Severity.WARNING
    sql = tuple(f"ROLLBACK PREPARED {row.quoted}" for row in old)
    return Finding("prepared_transactions", severity, said, measured, FORGOTTEN, END, sql)


def replication_slots(subject: Subject) -> Finding:
    """For how many transactions standbys and subscribers have held vacuum back."""
    rows, limit = subject.asking.ask(SLOTS), subject.limits.slots
    measured = {"slots": [{name: getattr(row, name) for name in MEASURED} for row in rows]}
    holding = [row for row in rows if _held(row, limit) >= limit]
    said = _told(holding or [row for row in rows if _held(row, limit)], limit) or "none holds vacuum back"
    if not holding:
        return Finding("replication_slots", Severity.OK, said, measured)
    tables = max(int(row.tables) for row in holding)
    severity = Severity.CRITICAL if tables >= 12 * limit else Severity.WARNING
    unused = [row.quoted for row in holding if not row.active]
    sql = tuple(f"SELECT pg_drop_replication_slot({name})" for name in unused)
    cause = HELD if tables >= limit else CATALOGS
    return Finding("replication_slots", severity, said, measured, cause, UNUSED if unused else IN_USE, sql)


def _held(row: Row[Any], limit: int) -> int:
    """For how many transactions: of all tables, unless only that of the catalogs is beyond the limit."""
    return int(row.tables) if row.tables >= limit else max(int(row.tables), int(row.catalogs))


def _told(rows: Sequence[Row[Any]], limit: int) -> str:
    return "; ".join(
        f"{row.kind} {row.name} ({'in use' if row.active else 'not in use'}) holds"
        f" {'vacuum' if _held(row, limit) == row.tables else 'vacuum of the catalogs'} back by"
        f" {_held(row, limit):,} transactions"
        for row in rows
    )
