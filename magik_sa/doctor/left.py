"""Jobs that are left: by every worker, because a transaction has locked something, or for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Row

from ..asking import Unanswered
from ..harmless import word
from ..status.figures import Queue, Unserved
from .finding import SEE_ALL, Finding, Severity, Subject, session, span

SHOWN: Final = 4

# A worker passes over a schedule that somebody has locked, and nobody waits, so that blocked_rows sees nothing of it.
# To lock rows and not change them is what takes a RowShareLock on their table; the rows themselves can only be seen by
# who may read the whole table. A worker's own transactions are those of the jobs they run.
LOCKING: Final = """
SELECT DISTINCT a.pid, a.application_name AS application, a.usename AS role, a.state, c.relname AS table,
       host(a.client_addr) AS client,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float AS seconds, quote_ident(current_user) AS me
  FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.granted AND a.backend_xid IS NOT NULL
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = :oid)
   AND (c.relname = 'magik_jobs' AND l.mode = 'RowShareLock'
        OR c.relname = 'magik_job_schedules' AND l.mode IN ('RowShareLock', 'RowExclusiveLock'))
   AND a.application_name !~ ' (performer|maintenance)$'
   AND coalesce(a.xact_start < clock_timestamp() - make_interval(secs => :limit), true)
 ORDER BY seconds DESC NULLS LAST, pid"""

# Those of the last years need not be counted one by one.
LETTERS: Final = """
SELECT count(*) AS letters, count(*) FILTER (WHERE expired_at < now() - interval '90 days') AS old,
       mode() WITHIN GROUP (ORDER BY job_class) AS most
  FROM (SELECT expired_at, job_class FROM {schema}magik_jobs WHERE expired_at IS NOT NULL
         ORDER BY expired_at LIMIT :limit) oldest"""

RESUME: Final = """
SELECT format('DELETE FROM %s.magik_queues WHERE name = %L', relnamespace::regnamespace, CAST(:name AS text)) AS sql
  FROM pg_class WHERE oid = :oid"""
PAUSE: Final = "No worker takes jobs from a queue that is paused, until it is resumed."

LOCKED: Final = (
    "Its transaction keeps rows locked: a schedule among them gets no tick, a job is not begun, or cannot end."
)
UNSERVED: Final = {
    "no_worker": "no live worker works that queue",
    "passed_over": "the workers of that queue do not know the class",
}
STRANDED: Final = "Jobs wait for a worker of their queue that imports their class."
BUSY: Final = (
    "There is more to do than these workers do; or none of them knows the class, which shows when they are idle."
)
FREE_ONE: Final = (
    "See which jobs wait (magik jobs list --state ready) and what the workers do (magik workers), or add workers."
)
WAITING: Final = ("name", "ready", "oldest_queued_seconds")
DIED: Final = "Their tries are used up; each holds what it was to do, and nobody will."
COUNTED: Final = 100_000


def locked_rows(subject: Subject) -> Finding:
    """Who has locked rows of jobs or schedules for a while, also where nobody waits for them."""
    limit = subject.limits.blocked.total_seconds()
    rows = subject.asking.ask(LOCKING, oid=subject.asking.oid, limit=limit)
    names = ("pid", "application", "role", "client", "state", "table", "seconds")
    measured = {"locking": [{name: getattr(row, name) for name in names} for row in rows]}
    seen = [row for row in rows if row.seconds is not None]
    if not rows:
        return Finding("locked_rows", Severity.OK, f"nobody has locked a row for {span(limit)}", measured)
    if not seen:
        remedy = SEE_ALL.format(role=rows[0].me)
        return Finding("locked_rows", Severity.UNKNOWN, _holders(rows), measured, LOCKED, remedy)
    sql = tuple(dict.fromkeys(f"SELECT pg_terminate_backend({row.pid})" for row in seen))
    remedy = "End that transaction in its program, or here."
    return Finding("locked_rows", Severity.WARNING, _holders(seen), measured, LOCKED, remedy, sql)


def _holders(rows: Sequence[Row[Any]]) -> str:
    return "; ".join(
        f"{session(row)}, {row.state or 'state unknown'}, has"
        f" locked rows of {row.table} for {'an unknown time' if row.seconds is None else span(row.seconds)}"
        for row in rows[:SHOWN]
    )


def unserved(subject: Subject) -> Finding:
    """Classes with due jobs that no live worker can be seen to run."""
    found, limit = subject.status, subject.limits.unserved.total_seconds()
    if found.unserved is None:
        raise Unanswered("; ".join(found.unknown.values()))
    late = sorted((each for each in found.unserved if (each.oldest_queued_seconds or 0) >= limit), key=_age)
    measured = {"unserved": [vars(each) for each in late]}
    if not late and (waiting := _behind(found.queues or (), limit)):
        measured |= {"waiting": [{name: getattr(queue, name) for name in WAITING} for queue in waiting]}
        return Finding("unserved", Severity.NOTE, "; ".join(map(_full, waiting[:SHOWN])), measured, BUSY, FREE_ONE)
    if not late:
        return Finding("unserved", Severity.OK, f"no job has waited for {span(limit)} for a worker", measured)
    said = "; ".join(
        f"{each.ready:,} {each.job_class} of the queue {each.queue}, the oldest due for {span(-_age(each))}:"
        f" {UNSERVED[each.why]}"
        for each in late[:SHOWN]
    )
    queues = " ".join(f"--queue {word(name)}" for name in sorted({each.queue for each in late}))
    remedy = f"Start a worker with {queues} that imports the modules of these classes."
    return Finding("unserved", Severity.WARNING, said, measured, STRANDED, remedy)


def _age(each: Unserved) -> float:
    return -(each.oldest_queued_seconds or 0.0)


def _behind(queues: Sequence[Queue], limit: float) -> list[Queue]:
    """Queues whose workers have other things to do than to wait beside a job that they do not know."""
    return [each for each in queues if not each.paused and (each.oldest_queued_seconds or 0.0) >= limit]


def _full(queue: Queue) -> str:
    return (
        f"queue {queue.name}: {_waits(queue)}; its workers are busy, so it cannot be told whether they know the class"
    )


def _waits(queue: Queue) -> str:
    """As in: 5 wait, the oldest for 9.0 s."""
    more = "+" if "ready" in queue.at_least else ""
    wait = "1 job waits" if queue.ready == 1 else f"{queue.ready:,}{more} jobs wait"
    return f"{wait}, the oldest for {span(queue.oldest_queued_seconds or 0.0)}"


def paused_queues(subject: Subject) -> Finding:
    """Queues that somebody has paused, with due jobs that have waited for a while. A pause is meant: a note."""
    found, limit = subject.status, subject.limits.unserved.total_seconds()
    if found.queues is None or any(queue.paused is None or queue.ready is None for queue in found.queues):
        raise Unanswered("; ".join(found.unknown.values()))
    waiting = [queue for queue in found.queues if queue.paused and (queue.oldest_queued_seconds or 0.0) >= limit]
    names = ("name", "paused_by", "ready", "oldest_queued_seconds")
    measured = {"paused": [{name: getattr(queue, name) for name in names} for queue in waiting]}
    if not waiting:
        early = [queue for queue in found.queues if queue.paused and queue.ready]
        said = "; ".join(f"queue {queue.name}, paused{_by(queue)}: {_waits(queue)}" for queue in early[:SHOWN])
        return Finding("paused_queues", Severity.OK, said or "no job waits in a queue that is paused", measured)
    said = "; ".join(_paused(queue) for queue in waiting[:SHOWN])
    sql = tuple(subject.asking.one(RESUME, oid=subject.asking.oid, name=queue.name).sql for queue in waiting)
    resuming = "; ".join(f"magik queues resume {word(queue.name)}" for queue in waiting)
    remedy = f"Resume it if the pause is over: {resuming}"
    return Finding("paused_queues", Severity.NOTE, said, measured, PAUSE, remedy, sql)


def _paused(queue: Queue) -> str:
    more = "+" if "ready" in queue.at_least else ""
    age = span(queue.oldest_queued_seconds or 0.0)
    return f"queue {queue.name}, paused{_by(queue)}: {queue.ready:,}{more} jobs are due, the first for {age}"


def _by(queue: Queue) -> str:
    return f" by {queue.paused_by}" if queue.paused_by else ""


def dead_letters(subject: Subject) -> Finding:
    """How many there are, and of which class most."""
    row = subject.asking.one(LETTERS, limit=COUNTED)
    more = "+" if row.letters == COUNTED else ""
    said = f"{row.letters:,}{more}" + (f", most of the class {row.most}" if row.letters else "")
    measured = {"letters": row.letters, "older_than_90_days": row.old, "most": row.most}
    if row.letters < subject.limits.dead_letters:
        return Finding("dead_letters", Severity.OK, said, measured)
    remedy = (
        "See why the latest died, mend that, and run them again (magik jobs retry), or remove old ones (magik prune)."
    )
    table = f"{_schema(subject)}magik_jobs"
    sql = (f"DELETE FROM {table} WHERE expired_at < now() - interval '90 days'",) if row.old else ()
    return Finding("dead_letters", Severity.WARNING, said, measured, DIED, remedy, sql)


def _schema(subject: Subject) -> str:
    place = "SELECT relnamespace::regnamespace || '.' AS place FROM pg_class WHERE oid = :oid"
    return str(subject.asking.one(place, oid=subject.asking.oid).place)
