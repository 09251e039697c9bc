"""``magik jobs status``: the figures of each queue, who works it, and what nobody does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import click

from ..asking import Asking
from ..display import harmless
from ..status import status
from ..status.figures import Queue, Schedule, Status, Unserved, Worker
from .connect import connected
from .output import Answer, Command
from .tables import table

COUNTS: Final = ("ready", "running", "scheduled", "errored", "expired")
WHY: Final = {
    "no_worker": "no live worker works this queue",
    "passed_over": "the workers of this queue wait for work and have passed them over: they do not know the class",
}
HIDDEN: Final = "Unknown workers: this role does not see other roles' sessions (GRANT pg_read_all_stats TO it)."


@click.command("status", cls=Command)
@click.option("--database-url", help="postgresql+psycopg://user@host/database [MAGIK_DATABASE_URL]")
def command(database_url: str | None) -> Answer:
    """What is ready, running, scheduled, errored and expired in each queue, and who works it."""
    with connected(database_url, "status") as connection:
        found = status(Asking(connection))
    return Answer("\n\n".join(told(found)), asdict(found))


def told(found: Status) -> Iterator[str]:
    """Paragraphs for people."""
    yield _queues(found.queues)
    yield _workers(found.workers)
    if found.schedules is None or found.schedules:
        yield _schedules(found.schedules)
    yield from filter(None, [_unserved(found.unserved)])
    if any(worker.alive is None for worker in found.workers or ()):
        yield HIDDEN
    yield from (f"Unknown: {what}: {harmless(why)}." for what, why in found.unknown.items())


def _queues(queues: list[Queue] | None) -> str:
    if not queues:
        return "Queues: unknown" if queues is None else "No jobs, and no queue is worked."
    columns = ("queue", *COUNTS, "oldest", "workers")
    return table(columns, [_queue(queue) for queue in queues], columns[1:])


def _queue(queue: Queue) -> list[Any]:
    name = queue.name + (f" (paused{f' by {queue.paused_by}' if queue.paused_by else ''})" if queue.paused else "")
    counts = [figure(queue, name) for name in COUNTS]
    return [name, *counts, _age(queue), figure(queue, "workers")]


def figure(queue: Queue, name: str) -> str | None:
    """A count, with a plus where it was not counted to the end."""
    value = getattr(queue, name)
    return None if value is None else f"{value:,}{'+' if name in queue.at_least else ''}"


def _age(queue: Queue) -> str | None:
    if queue.oldest_queued_seconds is None:
        return None
    return f"{queue.oldest_queued_seconds:,.1f} s" if queue.ready else "-"


def _workers(workers: list[Worker] | None) -> str:
    if not workers:
        return "Workers: unknown" if workers is None else "No worker is alive."
    alive = {True: "alive", None: None}
    rows = [(w.name, w.pid, alive[w.alive], w.running, ", ".join(w.queues)) for w in workers]
    return table(("worker", "session", "state", "running", "queues"), rows, ("session", "running"))


def _schedules(schedules: list[Schedule] | None) -> str:
    if schedules is None:
        return "Schedules: unknown"
    rows = [(s.name, s.job_class, s.next_run_at, s.last_run_at or "never", _state(s)) for s in schedules]
    return table(("schedule", "job", "next", "last", "state"), rows)


def _state(schedule: Schedule) -> str:
    if schedule.paused:
        return f"paused by {schedule.paused_by}" if schedule.paused_by else "paused"
    return "stale: no worker takes its ticks" if schedule.stale else "on time"


def _unserved(unserved: list[Unserved] | None) -> str:
    if unserved is None:
        return "Jobs that nobody serves: unknown"
    rows = [(u.job_class, u.queue, f"{u.ready:,}", f"{u.oldest_queued_seconds:,.1f} s", WHY[u.why]) for u in unserved]
    return table(("nobody serves", "queue", "ready", "oldest", "because"), rows, ("ready", "oldest")) if rows else ""
