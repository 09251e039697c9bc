"""What there is to do, who does it, and what is left lying. A job runs where its lock is held, a worker lives where its
session does; no note and no heartbeat is believed. Works without the application's job classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Row

from ..asking import Asking, Unanswered
from . import questions
from .figures import MOST, Queue, Schedule, Status, Unserved, Worker

Rows = Sequence[Row[Any]] | None
T = TypeVar("T")

STALE_AFTER: Final = 60.0  # seconds after its time within which some worker should have taken a tick
PASSED_OVER_AFTER: Final = 10.0  # seconds for which a waiting worker leaves a due job only if it does not know it


def status(asking: Asking, most: int = MOST) -> Status:
    """Ask for all of it; what may cost most comes last. Counts up to `most` rows of a queue in one state."""
    asked = _Asked(asking)
    workers = asked.each(_worker, "workers", questions.WORKERS, oid=asking.oid)
    late = 0.0 if workers == [] else STALE_AFTER  # where nobody is alive nobody will take it
    schedules = asked.each(_schedule, "schedules", questions.SCHEDULES, late=late)
    paused = asked.rows("paused queues", questions.PAUSED)
    running = asked.rows("running jobs", questions.RUNNING, oid=asking.oid)
    live = asked.rows("live jobs", questions.LIVE, oid=asking.oid, limit=most + 1)
    expired = asked.rows("expired jobs", questions.EXPIRED, limit=most + 1)
    queues = _queues(_Rows(live, running, expired, paused), workers, most)
    listed = None if live is None and not queues else queues
    stopped = {queue.name for queue in queues if queue.paused}
    unserved = None if live is None or workers is None else [*_unserved(live, workers, stopped)]
    return Status(listed, workers, schedules, unserved, asked.unknown)


class _Asked:
    """What is asked, and why some of it has no answer."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self.unknown: dict[str, str] = {}

    def rows(self, what: str, statement: str, **values: Any) -> Rows:
        """The answer; None where there is none."""
        try:
            return self._asking.ask(statement, **values)
        except Unanswered as why:
            self.unknown[what] = str(why)
            return None

    def each(self, made: Callable[[Row[Any]], T], what: str, statement: str, **values: Any) -> list[T] | None:
        """Something of each row."""
        rows = self.rows(what, statement, **values)
        return None if rows is None else [made(row) for row in rows]


class _Rows:
    """The answers, by queue; None where there is none."""

    def __init__(self, live: Rows, running: Rows, expired: Rows, paused: Rows) -> None:
        self.live, self.running, self.expired = _by_queue(live), _by_queue(running), _by_queue(expired)
        self.paused = None if paused is None else {row.name: row for row in paused}

    def names(self) -> set[str]:
        """Every queue that something is known of."""
        answers = (self.live, self.running, self.expired, self.paused)
        return {name for answer in answers if answer for name in answer}


def _by_queue(rows: Rows) -> dict[str, list[Row[Any]]] | None:
    if rows is None:
        return None
    found: dict[str, list[Row[Any]]] = {}
    for row in rows:
        found.setdefault(row.queue, []).append(row)
    return found


def _schedule(row: Row[Any]) -> Schedule:
    return Schedule(**row._mapping)


def _worker(row: Row[Any]) -> Worker:
    proven = row.certain or row.running or row.waits_for
    return Worker(
        row.name, row.pid, row.queues, True if proven else None, row.running, row.waits_for, row.ended, row.draining
    )


def _queues(rows: _Rows, workers: list[Worker] | None, most: int) -> list[Queue]:
    names = rows.names() | {name for worker in workers or () for name in worker.queues}
    queues = [Queue(name) for name in sorted(names)]
    more = sum(row.rows for found in (rows.expired or {}).values() for row in found) > most
    for queue in queues:
        if rows.live is not None:
            _count_live(queue, rows.live.get(queue.name, []), most)
        if rows.running is not None:
            queue.running = sum(row.rows for row in rows.running.get(queue.name, []))
        if rows.expired is not None:
            _count_expired(queue, sum(row.rows for row in rows.expired.get(queue.name, [])), most, more)
        if rows.paused is not None:
            _pause(queue, rows.paused.get(queue.name))
        if workers is not None:
            _count_workers(queue, [worker for worker in workers if queue.name in worker.queues])
    return queues


def _pause(queue: Queue, row: Row[Any] | None) -> None:
    queue.paused = row is not None
    if row is not None:
        queue.paused_by, queue.paused_at = row.paused_by, row.paused_at


def _count_live(queue: Queue, rows: list[Row[Any]], most: int) -> None:
    """Ready, scheduled and errored; `read` tells whether a limit ended the count."""
    due, later = [row for row in rows if row.due], [row for row in rows if not row.due]
    for name, some in (("ready", due), ("scheduled", later)):
        queue.count(name, min(most, sum(row.rows for row in some)), _more(some, most))
    queue.count("errored", sum(row.errored for row in rows), _more(due, most) or _more(later, most))
    queue.oldest_queued_seconds = max([0.0, *(row.oldest for row in due if row.oldest is not None)])


def _more(rows: list[Row[Any]], most: int) -> bool:
    read: int = sum(row.read for row in rows)
    return read > most


def _count_expired(queue: Queue, rows: int, most: int, more: bool) -> None:
    """Where the limit ended the count, a queue that was not seen may have some as well."""
    if rows or not more:
        queue.count("expired", min(most, rows), more)


def _count_workers(queue: Queue, ours: list[Worker]) -> None:
    """Those that live, and what they have ended; one of which that cannot be told is no zero."""
    live, more = [worker for worker in ours if worker.alive], any(worker.alive is None for worker in ours)
    if live or not more:
        queue.count("workers", len(live), more)
    if live:
        ended = sum(dict(zip(worker.queues, worker.ended, strict=False))[queue.name] for worker in live)
        queue.count("ended_last_minute", ended, more)


def _unserved(live: Sequence[Row[Any]], workers: list[Worker], stopped: Collection[str]) -> Iterator[Unserved]:
    """A worker does not say which classes it knows, but it shows: it sleeps beside those that it does not."""
    for row in sorted((row for row in live if row.due and row.rows), key=lambda row: (row.queue, row.job_class)):
        ours, age = [worker for worker in workers if row.queue in worker.queues], row.oldest or 0.0
        if row.queue not in stopped and (why := _why(row.queue, ours, age)):
            yield Unserved(row.job_class, row.queue, row.rows, age, why)


def _why(queue: str, workers: list[Worker], age: float) -> str | None:
    """One that runs a job may be full, and will come to the others; then nothing can be told."""
    if not workers:
        return "no_worker"
    idle = not any(worker.running for worker in workers) and any(queue in worker.waits_for for worker in workers)
    return "passed_over" if idle and age > PASSED_OVER_AFTER else None
