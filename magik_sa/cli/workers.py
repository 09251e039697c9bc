"""``magik workers``: who is there, since when, and what each has in hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

import click

from ..status.at_work import AtWork, InHand, Workers, at_work
from .connect import URL, asked
from .output import Answer, Command
from .status import hidden_told, state_of, unknown_told
from .tables import table

RUNNING: Final = "running"
GONE: Final = "-"  # of a cancelled job: what said so was its row
ENDLESS: Final = (
    "One that does not end keeps a thread: end its worker (SIGKILL), and its other jobs start again elsewhere."
)


@click.command("workers", cls=Command)
@URL
def command(database_url: str | None) -> Answer:
    """The workers that are alive, by their database session, and the jobs that each runs."""
    found = asked(database_url, "workers", at_work)
    return Answer("\n\n".join(told(found)), asdict(found))


def told(found: Workers) -> Iterator[str]:
    """Paragraphs for people."""
    if not found.workers:
        yield "Workers: unknown" if found.workers is None else "No worker is alive."
    else:
        yield _workers(found.workers)
        if jobs := [(worker.name, job) for worker in found.workers for job in worker.jobs or ()]:
            yield from _in_hand(jobs)
        yield from hidden_told(found.workers)
    yield from unknown_told(found.unknown)


def _in_hand(jobs: list[tuple[str, InHand]]) -> Iterator[str]:
    """Those that run, and those that were taken away from runs which go on."""
    if running := [(job.id, job.job_class, job.queue, job.since, name) for name, job in jobs if job.state == RUNNING]:
        yield table(("job", "class", "queue", "since", "worker"), running)
    if taken := [
        (job.id, job.job_class or GONE, job.queue or GONE, job.since, name, f"{job.state}, still running")
        for name, job in jobs
        if job.state != RUNNING
    ]:
        yield f"{table(('job', 'class', 'queue', 'since', 'worker', 'state'), taken)}\n{ENDLESS}"


def _workers(workers: list[AtWork]) -> str:
    rows = [
        (w.name, w.pid, state_of(w), w.since, w.running, ", ".join(w.queues), ", ".join(w.waits_for) or "-")
        for w in workers
    ]
    columns = ("worker", "session", "state", "since", "running", "queues", "waits for")
    return table(columns, rows, ("session", "running"))
