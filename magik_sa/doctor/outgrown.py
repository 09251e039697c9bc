"""The signals that this Postgres is straining under its queue: measured over some seconds of real work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ..asking import Unanswered
from ..status.figures import Queue
from .finding import SEE_ALL, Finding, Severity, Subject, ago
from .vacuum import DEAD
from .window import Window, watch

SECONDS: Final = 3.0


@dataclass(frozen=True)
class Strain:
    """From where on something is a signal."""

    dead_share: float = 0.2  # of the job table, beside an autovacuum that keeps its rounds
    dead_tuples: int = 10_000  # and at the same time
    wal_share: float = 0.3  # of all WAL written meanwhile
    wal_rate: float = 1_000_000  # bytes a second of all WAL: below, a share says nothing
    maintenance: float = 0.2  # of the looks in which sessions wait for files while the job table is cleaned
    oldest: float = 10.0  # seconds for which the oldest job of a queue has been due


Look = Callable[[Subject, Window, Strain], Finding]

# docs/ceiling.md has what each of them means, and what the next rung costs.
FIRST: Final = "First what magik doctor finds; then docs/ceiling.md#what-the-next-rung-costs."
CLEANED: Final = (
    "Autovacuum comes in time and cannot keep up: more rows end than it cleans, or a transaction keeps them."
)
WAL: Final = "What the queue writes is a good part of what this server has to write, replicate and archive."
MULTIXACT: Final = "Row locks that several transactions share are made faster than the server can note them."
BUSY: Final = "Cleaning the job table and the application's queries want the same disk."
RISING: Final = (
    "Jobs grow older and do not grow more: that is not load. Workers do not take what is due, or each claim is slow."
)


def outgrown(subject: Subject, seconds: float = SECONDS, strain: Strain | None = None) -> list[Finding]:
    """Each signal. What cannot be seen is unknown."""
    window, limits = watch(subject.asking, seconds), strain or Strain()
    return [_look(look, subject, window, limits) for look in SIGNALS]


def _look(look: Look, subject: Subject, window: Window, strain: Strain) -> Finding:
    try:
        return look(subject, window, strain)
    except Unanswered as why:
        return Finding(look.__name__, Severity.UNKNOWN, f"unknown: {why}")


def dead_share(subject: Subject, window: Window, strain: Strain) -> Finding:  # noqa: ARG001  (asked of the server now)
    """Dead tuples that stay in spite of autovacuum."""
    row = subject.asking.one(DEAD, oid=subject.asking.oid)
    if not row.counted:
        raise Unanswered("track_counts is off")
    share = row.dead / max(1, row.live + row.dead)
    kept = row.autovacuum is not None and row.autovacuum < 2 * row.pause
    said = f"{share:.0%} of the job table is dead ({row.dead:,} tuples), last autovacuum {ago(row.autovacuum)}"
    measured = {"share": round(share, 3), "dead": row.dead, "autovacuum_in_time": kept}
    if kept and share >= strain.dead_share and row.dead >= strain.dead_tuples:
        return Finding("dead_share", Severity.WARNING, said, measured, CLEANED, FIRST)
    return Finding("dead_share", Severity.OK, said, measured)


def wal_share(subject: Subject, window: Window, strain: Strain) -> Finding:  # noqa: ARG001  (it was watched)
    """How much of the WAL is the queue's, by pg_stat_statements; commits and cleaning are not in its statements."""
    if window.by_jobs is None or not window.written:
        raise Unanswered(window.unseen.get("wal", "no WAL was written meanwhile"))
    share, rate = min(1.0, window.by_jobs / window.written), window.written / window.seconds
    said = f"statements on the tables of the queue wrote {share:.0%} of {rate / 1e6:.2f} MB/s of WAL"
    measured = {"share": round(share, 3), "bytes_per_second": round(rate)}
    if share >= strain.wal_share and rate >= strain.wal_rate:
        return Finding("wal_share", Severity.WARNING, said, measured, WAL, FIRST)
    return Finding("wal_share", Severity.OK, said, measured)


def multixact_waits(subject: Subject, window: Window, strain: Strain) -> Finding:  # noqa: ARG001  (any is one)
    """In how many looks somebody waited for the id of a shared row lock."""
    seen, most = _in_sight(window, lambda look: look.multixact), max(look.multixact for look in window.sessions)
    said = f"in {seen} of {len(window.sessions)} looks sessions waited for MultiXact, {most} at most"
    measured = {"looks": len(window.sessions), "seen": seen, "most": most}
    if seen:
        return Finding("multixact_waits", Severity.WARNING, said, measured, MULTIXACT, FIRST)
    return _unless_hidden(Finding("multixact_waits", Severity.OK, said, measured), window)


def maintenance(subject: Subject, window: Window, strain: Strain) -> Finding:  # noqa: ARG001  (it was watched)
    """In how many looks sessions waited for files while the job table was being cleaned."""
    seen = _in_sight(window, lambda look: look.vacuum and look.reading)
    said = f"in {seen} of {len(window.sessions)} looks sessions waited for I/O while the job table was cleaned"
    measured = {"looks": len(window.sessions), "seen": seen, "cleaning": _in_sight(window, lambda look: look.vacuum)}
    if seen and seen >= strain.maintenance * len(window.sessions):
        return Finding("maintenance", Severity.WARNING, said, measured, BUSY, FIRST)
    return _unless_hidden(Finding("maintenance", Severity.OK, said, measured), window)


def _in_sight(window: Window, seen: Callable[[Any], Any]) -> int:
    return sum(1 for look in window.sessions if seen(look))


def _unless_hidden(finding: Finding, window: Window) -> Finding:
    """That nothing was seen says nothing where the waits of other roles are not shown."""
    if not (look := window.sessions[-1]).hidden:
        return finding
    remedy = SEE_ALL.format(role=look.me)
    return Finding(
        finding.name, Severity.UNKNOWN, f"{finding.said}; other roles' are hidden", finding.measured, "", remedy
    )


def oldest_queued(subject: Subject, window: Window, strain: Strain) -> Finding:  # noqa: ARG001  (it was watched)
    """Whether the oldest due job of a queue grows older while the queue does not grow: the signature of bloat."""
    rising = [*_rising(window, strain)]
    measured = {"rising": rising, "seconds": round(window.seconds, 1)}
    if not rising:
        return Finding("oldest_queued", Severity.OK, "no queue grows older without growing longer", measured)
    said = "; ".join(
        f"queue {each['queue']}: the oldest due for {each['oldest']:.0f} s, {each['older']:.1f} s more within"
        f" {window.seconds:.1f} s, {each['ready']:,} ready before and after"
        for each in rising
    )
    return Finding("oldest_queued", Severity.WARNING, said, measured, RISING, FIRST)


def _rising(window: Window, strain: Strain) -> Iterator[dict[str, Any]]:
    """Older by most of the time that went by, and as long as before, give or take a tenth."""
    before = {queue.name: queue for queue in window.queues[0]}
    for queue in window.queues[1]:
        first = before.get(queue.name, Queue(queue.name))
        if None in (first.ready, queue.ready, first.oldest_queued_seconds, queue.oldest_queued_seconds):
            continue
        ready, oldest = (first.ready or 0, queue.ready or 0), queue.oldest_queued_seconds or 0.0
        older = oldest - (first.oldest_queued_seconds or 0.0)
        flat = abs(ready[1] - ready[0]) <= 0.1 * ready[0]
        if not queue.paused and flat and ready[1] and oldest >= strain.oldest and older >= 0.8 * window.seconds:
            yield {"queue": queue.name, "ready": ready[1], "oldest": oldest, "older": older}


SIGNALS: Final[tuple[Look, ...]] = (dead_share, wal_share, multixact_waits, maintenance, oldest_queued)
