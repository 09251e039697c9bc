"""What all sessions share beside the locks: the queue of notifications, and the ids of shared row locks."""

from __future__ import annotations

from typing import Final

from .finding import SEE_ALL, Finding, Severity, Subject, span

# Whoever listens and stays in a transaction keeps what came since. Who listens to what is not to be seen from outside,
# so those with the oldest transactions are named; the log of the server names the one from half a queue on.
NOTIFICATIONS: Final = """
SELECT pg_notification_queue_usage() AS used,
       (SELECT count(*) FROM {schema}magik_workers w JOIN pg_stat_activity a ON a.pid = w.backend_pid
         WHERE coalesce(a.backend_start = w.backend_start, true)) AS workers"""
OLDEST: Final = """
SELECT pid, application_name AS application, extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds,
       bool_or(xact_start IS NULL AND usename <> current_user) OVER () AS hidden, quote_ident(current_user) AS me
  FROM pg_stat_activity
 WHERE usename IS NOT NULL AND pid <> pg_backend_pid() AND coalesce(backend_type, 'client backend') = 'client backend'
 ORDER BY xact_start NULLS LAST LIMIT 3"""

# A row that two transactions lock at once has their common id in it. All tables have their part in the age.
MULTIXACTS: Final = """
SELECT mxid_age(datminmxid) AS age, current_setting('autovacuum_multixact_freeze_max_age')::bigint AS most,
       (SELECT count(*) FROM pg_stat_activity WHERE wait_event LIKE 'MultiXact%') AS waiting
  FROM pg_database WHERE datname = current_database()"""

FULL: Final = (
    "A session that listens and stays in a transaction keeps all notifications since; when their queue is full, every"
    " transaction that notifies fails, of workers as of others."
)
LISTENER: Final = "End the transaction of that session: one of those that have been open longest, in any database."
MANY: Final = (
    "Many transactions lock the same rows at once (foreign keys, SELECT … FOR SHARE): they queue for the ids of these"
    " locks. Jobs are claimed without any row lock."
)
AGED: Final = (
    "Vacuum has not come to freeze the tables; from that age on it does so for all of them, whatever it costs."
)
FREEZE: Final = "Clean the tables in a quiet hour, as a superuser; mend oldest_transaction first if it is a finding."


def notifications(subject: Subject) -> Finding:
    """How full the queue of notifications is, and how many workers listen."""
    row = subject.asking.one(NOTIFICATIONS)
    said = f"the queue of notifications is filled to {row.used:.0%}; {row.workers} workers listen here"
    measured = {"used": row.used, "workers": row.workers}
    if row.used < subject.limits.notifications:
        return Finding("notifications", Severity.OK, said, measured)
    severity = Severity.WARNING if row.used < max(0.5, subject.limits.notifications) else Severity.CRITICAL
    sessions = subject.asking.ask(OLDEST)
    remedy = f"{LISTENER} {SEE_ALL.format(role=sessions[0].me)}" if sessions and sessions[0].hidden else LISTENER
    oldest = [each for each in sessions if each.seconds is not None]
    named = ", ".join(f"{each.pid} ({each.application or 'no name'}, {span(each.seconds)})" for each in oldest)
    sql = tuple(f"SELECT pg_terminate_backend({each.pid})" for each in oldest[:1])
    return Finding("notifications", severity, f"{said}; oldest transactions: {named}", measured, FULL, remedy, sql)


def multixact(subject: Subject) -> Finding:
    """The age of the oldest id of a shared row lock, and who waits for such ids at this moment."""
    row = subject.asking.one(MULTIXACTS)
    said = f"oldest {row.age:,} of {row.most:,} old; {row.waiting} sessions wait for one"
    measured = {"age": row.age, "freeze_max_age": row.most, "waiting": row.waiting}
    if row.age >= subject.limits.multixacts * row.most:
        return Finding("multixact", Severity.WARNING, said, measured, AGED, FREEZE, ("VACUUM (FREEZE)",))
    if row.waiting:
        return Finding("multixact", Severity.NOTE, said, measured, MANY, "magik doctor --outgrown looks for longer.")
    return Finding("multixact", Severity.OK, said, measured)
