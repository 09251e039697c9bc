"""What keeps dead rows from being cleaned away: somebody's old transaction, the first sign of it, and the rows."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Row

from .finding import SEE_ALL, Finding, Severity, Subject, ago, session, span

# Only a transaction with a snapshot or with writes holds anything back, and those two are seen by every role; the age
# of another role's is not. Autovacuum, which is nobody's, and walsenders are left out, and so is this session.
HOLDING: Final = """
SELECT pid, application_name AS application, usename AS role, state, host(client_addr) AS client,
       extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds, quote_ident(current_user) AS me
  FROM pg_stat_activity
 WHERE datname = current_database() AND usename IS NOT NULL AND pid <> pg_backend_pid()
   AND coalesce(backend_type, 'client backend') = 'client backend'
   AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
 ORDER BY xact_start NULLS LAST"""

MEASURED: Final = ("seconds", "pid", "application", "role", "state", "client")
OLDEST_CAUSE: Final = (
    "While a transaction is open, no row that was deleted since it began can be cleaned away, by whatever vacuum; every"
    " claim and every query reads past them."
)

LONG: Final = 10.0  # seconds that a transaction is open: autovacuum has come meanwhile, or will have soon

# A queue that is busy leaves thousands between two rounds of autovacuum. That is nothing, unless autovacuum misses its
# rounds, or somebody's transaction makes them useless.
DEAD: Final = f"""
SELECT n_live_tup AS live, n_dead_tup AS dead, current_setting('track_counts')::bool AS counted,
       extract(epoch FROM now() - last_autovacuum)::float AS autovacuum,
       extract(epoch FROM now() - last_vacuum)::float AS vacuum,
       extract(epoch FROM current_setting('autovacuum_naptime')::interval)::float AS pause,
       EXISTS (SELECT FROM pg_stat_activity
                WHERE datname = current_database() AND usename IS NOT NULL AND pid <> pg_backend_pid()
                  AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
                  AND coalesce(xact_start < clock_timestamp() - interval '{LONG:.0f} s', true))
         OR EXISTS (SELECT FROM pg_prepared_xacts
                     WHERE database = current_database() AND prepared < clock_timestamp() - interval '1 s')
         OR EXISTS (SELECT FROM pg_replication_slots WHERE age(xmin) > 10000) AS held,
       quote_ident(schemaname) || '.magik_jobs' AS name
  FROM pg_stat_all_tables WHERE relid = :oid"""

OPEN: Final = (
    "A transaction has been open for {span}, that of {session}, {state}: until it ends no vacuum can clean them."
)
CLOSE: Final = "End it if it has been forgotten (oldest_transaction says how); autovacuum cleans when it is over."
BUSY: Final = "The queue is busy, and autovacuum is at it."
LEFT: Final = "Autovacuum does not keep up with the job table: held back, busy elsewhere, or off."
CLEAN: Final = (
    "Mend oldest_transaction, prepared_transactions or replication_slots first where one is a finding, then clean the"
    " table."
)


def oldest_transaction(subject: Subject) -> Finding:
    """Age, process and application of the oldest transaction that holds vacuum back."""
    rows = subject.asking.ask(HOLDING)
    if not rows:
        return Finding("oldest_transaction", Severity.OK, "no transaction holds vacuum back", dict.fromkeys(MEASURED))
    seen, hidden = [row for row in rows if row.seconds is not None], [row for row in rows if row.seconds is None]
    limit = subject.limits.oldest_transaction.total_seconds()
    if hidden and (not seen or seen[0].seconds < limit):
        return _hidden(hidden)
    return _oldest(seen[0], limit)


def _oldest(row: Row[Any], limit: float) -> Finding:
    measured = {name: getattr(row, name) for name in MEASURED}
    said = f"{span(row.seconds)} old: {session(row)}, {row.state}"
    if row.seconds < limit:
        return Finding("oldest_transaction", Severity.OK, said, measured)
    severity = Severity.CRITICAL if row.seconds >= 12 * limit else Severity.WARNING
    remedy = "End it in its program, or here; idle_in_transaction_session_timeout keeps it from coming back."
    sql = (f"SELECT pg_terminate_backend({row.pid})",)
    return Finding("oldest_transaction", severity, said, measured, OLDEST_CAUSE, remedy, sql)


def _hidden(rows: list[Row[Any]]) -> Finding:
    named = ", ".join(f"{row.pid} ({row.application or 'no name'}, role {row.role})" for row in rows[:3])
    said = f"{len(rows)} transactions of other roles hold vacuum back, for an unknown time: process {named}"
    measured, remedy = {name: getattr(rows[0], name) for name in MEASURED}, SEE_ALL.format(role=rows[0].me)
    return Finding("oldest_transaction", Severity.UNKNOWN, said, measured, OLDEST_CAUSE, remedy)


def dead_tuples(subject: Subject) -> Finding:
    """How much of the job table is dead, and when it was last cleaned."""
    row = subject.asking.one(DEAD, oid=subject.asking.oid)
    if not row.counted:
        remedy = "Set track_counts = on: without it autovacuum does not work either."
        return Finding("dead_tuples", Severity.UNKNOWN, "unknown, as track_counts is off", remedy=remedy)
    share = row.dead / max(1, row.live + row.dead)
    cleaned = f"last autovacuum {ago(row.autovacuum)}, last vacuum by hand {ago(row.vacuum)}"
    said = f"{row.dead:,} dead tuples beside {row.live:,} rows ({share:.0%} of the job table); {cleaned}"
    measured = {"dead": row.dead, "live": row.live, "share": round(share, 3)}
    measured |= {"last_autovacuum_seconds": row.autovacuum, "last_vacuum_seconds": row.vacuum}
    if row.dead < subject.limits.dead_tuples or share < subject.limits.dead_share:
        return Finding("dead_tuples", Severity.OK, said, measured)
    if row.autovacuum is not None and row.autovacuum < 2 * row.pause and not row.held:
        return Finding("dead_tuples", Severity.NOTE, said, measured, BUSY, "None yet: look again in a few minutes.")
    if holding := [each for each in subject.asking.ask(HOLDING) if (each.seconds or 0.0) >= LONG]:
        cause = OPEN.format(session=session(holding[0]), state=holding[0].state, span=span(holding[0].seconds))
        return Finding("dead_tuples", Severity.WARNING, said, measured, cause, CLOSE)
    return Finding("dead_tuples", Severity.WARNING, said, measured, LEFT, CLEAN, (f"VACUUM {row.name}",))
