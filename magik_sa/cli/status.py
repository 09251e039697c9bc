"""``magik jobs status``: the figures of each queue, who works it, and what nobody does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from ..harmless import harmless, word
from ..status import status
from ..status.at_work import AtWork
from ..status.figures import Queue, Schedule, Status, Unserved, Worker
from .connect import URL, asked
from .output import Answer
from .tables import moment, table
from .watch import Watched

COUNTS: Final = ("ready", "running", "scheduled", "errored", "expired")
WHY: Final = {
    "no_worker": "no live worker works this queue",
    "passed_over": "the workers of this queue wait for work and have passed them over: they do not know the class",
}
HIDDEN: Final = "Unknown workers: this role does not see other roles' sessions (GRANT pg_read_all_stats TO it)."


@click.command("status", cls=Watched)
@URL
def command(database_url: str | None) -> Answer:
    """What is ready, running, scheduled, errored and expired in each queue, and who works it."""
    found = asked(database_url, "status", status)
    return Answer("\n\n".join(told(found)), asdict(found))


def told(found: Status) -> Iterator[str]:
    """Paragraphs for people."""
    yield queues_told(found.queues)
    yield _workers(found.workers)
    if found.schedules is None or found.schedules:
        yield schedules_told(found.schedules)
    yield from filter(None, [_unserved(found.unserved)])
    yield from hidden_told(found.workers or ())
    yield from unknown_told(found.unknown)


def hidden_told(workers: Sequence[Worker | AtWork]) -> Iterator[str]:
    """That of some it cannot be told whether they are alive."""
    if any(worker.alive is None for worker in workers):
        yield HIDDEN


def unknown_told(unknown: Mapping[str, str]) -> Iterator[str]:
    """What could not be asked."""
    yield from (f"Unknown: {what}: {harmless(why)}." for what, why in unknown.items())


def queues_told(queues: list[Queue] | None) -> str:
    """The table of queues."""
    if not queues:
        return "Queues: unknown" if queues is None else "No jobs, and no queue is worked."
    columns = ("queue", *COUNTS, "oldest", "ended/min", "workers")
    drawn = table(columns, [_queue(queue) for queue in queues], columns[1:])
    return "\n".join([drawn, *(_stopped(queue) for queue in queues if queue.paused)])


def _stopped(queue: Queue) -> str:
    said = f"{queue.name}: {paused_told(queue.paused_by, queue.paused_at)}. It goes on with: {resuming(queue.name)}"
    return harmless(said)


def paused_told(by: str | None, since: str | None) -> str:
    """As in: paused by ada since 2026-11-30T01:34:05Z."""
    return " ".join(["paused", *([f"by {by}"] if by else []), *([f"since {moment(since)}"] if since else [])])


def resuming(queue: str) -> str:
    """How a paused queue is resumed."""
    return f"magik queues resume {word(queue)}"


def _queue(queue: Queue) -> list[Any]:
    name = f"{queue.name} (paused)" if queue.paused else queue.name
    counts = [figure(queue, name) for name in COUNTS]
    return [name, *counts, _age(queue), _rate(queue), figure(queue, "workers")]


def figure(queue: Queue, name: str) -> str | None:
    """A count, with a plus where it was not counted to the end."""
    value = getattr(queue, name)
    return None if value is None else f"{value:,}{'+' if name in queue.at_least else ''}"


def _age(queue: Queue) -> str | None:
    if queue.oldest_queued_seconds is None:
        return None
    return f"{queue.oldest_queued_seconds:,.1f} s" if queue.ready else "-"


def _rate(queue: Queue) -> str | None:
    """Where nobody is alive to tell of it, there is no figure, which is not one that could not be asked for."""
    return "-" if queue.workers == 0 else figure(queue, "ended_last_minute")


def _workers(workers: list[Worker] | None) -> str:
    if not workers:
        return "Workers: unknown" if workers is None else "No worker is alive."
    rows = [(w.name, w.pid, state_of(w), w.running, ", ".join(w.queues)) for w in workers]
    return table(("worker", "session", "state", "running", "queues"), rows, ("session", "running"))


def state_of(worker: Worker | AtWork) -> str | None:
    """None where it cannot be told whether it is alive."""
    if worker.alive is None:
        return None
    return "draining" if worker.draining else "alive"


def schedules_told(schedules: list[Schedule] | None) -> str:
    """The table of schedules."""
    if schedules is None:
        return "Schedules: unknown"
    rows = [(s.name, s.job_class, s.next_run_at, s.last_run_at or "never", _state(s)) for s in schedules]
    return table(("schedule", "job", "next", "last", "state"), rows)


def _state(schedule: Schedule) -> str:
    if schedule.paused:
        return paused_told(schedule.paused_by, schedule.paused_at)
    if schedule.rests:
        return f"rests: its on_schedule has ended {schedule.deaths} workers"
    if schedule.stale:
        return "stale: no worker takes its ticks"
    return "due" if schedule.due else "on time"


def _unserved(unserved: list[Unserved] | None) -> str:
    if unserved is None:
        return "Jobs that nobody serves: unknown"
    rows = [(u.job_class, u.queue, f"{u.ready:,}", f"{u.oldest_queued_seconds:,.1f} s", WHY[u.why]) for u in unserved]
    if not rows:
        return ""
    queues = " ".join(f"--queue {word(name)}" for name in sorted({u.queue for u in unserved}))
    drawn = table(("nobody serves", "queue", "ready", "oldest", "because"), rows, ("ready", "oldest"))
    return f"{drawn}\nStart a worker with {harmless(queues)} that imports the modules of these classes."
