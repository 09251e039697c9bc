"""Each worker that is there, and what it has in hand."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Row

from ..asking import Asking, Unanswered
from . import questions

MOST: Final = 1_000  # jobs that are listed, of all workers together
SETTLED: Final = 0.5  # seconds after which the note of a run that has ended is gone


@dataclass(frozen=True)
class InHand:
    """A job whose lock a worker holds, since its claim. `begun`: it has run for a moment at least.

    `state` is "running", or how it was taken away from its run, which goes on: "discarded", or "cancelled"; then its
    row is gone, and with it `job_class` and `queue`.
    """

    id: str
    job_class: str | None
    queue: str | None
    since: str
    begun: bool
    state: str


@dataclass(frozen=True)
class AtWork:
    """One worker, by its locking session: `pid` there, `since` in UTC. `alive` is None where that cannot be told.

    `running` counts the jobs whose locks it holds; `jobs` are those, None where they could not be asked for.
    `draining`: it has been told to end, and claims nothing more.
    """

    name: str
    pid: int
    queues: Sequence[str]
    alive: bool | None
    since: str
    running: int
    jobs: list[InHand] | None
    waits_for: Sequence[str]
    draining: bool


@dataclass
class Workers:
    """All of them; None where they could not be asked for. `unknown` says what is missing, and why."""

    workers: list[AtWork] | None = None
    unknown: dict[str, str] = field(default_factory=dict)


def at_work(asking: Asking, most: int = MOST) -> Workers:
    """Ask who is there, and what they do. Lists up to `most` jobs."""
    found = Workers()
    rows = _asked(found, "workers", asking, questions.WORKERS, oid=asking.oid)
    jobs = _jobs(found, asking, most)
    found.workers = None if rows is None else [_worker(row, jobs) for row in rows]
    return found


def runners(asking: Asking, ids: Collection[UUID]) -> set[str]:
    """The workers that have these jobs in hand, whatever has become of the rows; none where it cannot be told."""
    found, asked_for = Workers(), {str(each) for each in ids}
    rows = _asked(found, "workers", asking, questions.WORKERS, oid=asking.oid)
    jobs = _asked(found, "running jobs", asking, questions.JOBS, oid=asking.oid, limit=MOST)
    at = {job.pid for job in jobs or () if job.id in asked_for}
    return {row.name for row in rows or () if row.pid in at}


def _jobs(found: Workers, asking: Asking, most: int) -> Sequence[Row[Any]] | None:
    """What was taken away from its run looks for a moment like what has just ended: a second look tells them apart."""
    jobs = _asked(found, "running jobs", asking, questions.JOBS, oid=asking.oid, limit=most)
    if jobs is None or all(job.state == "running" for job in jobs):
        return jobs
    time.sleep(SETTLED)
    later = _asked(found, "running jobs", asking, questions.JOBS, oid=asking.oid, limit=most)
    if later is None:
        return None
    before = {(job.id, job.pid, job.since) for job in jobs}
    return [job for job in later if job.state == "running" or (job.id, job.pid, job.since) in before]


def _asked(found: Workers, what: str, asking: Asking, statement: str, **values: Any) -> Sequence[Row[Any]] | None:
    try:
        return asking.ask(statement, **values)
    except Unanswered as why:
        found.unknown[what] = str(why)
        return None


def _worker(row: Row[Any], jobs: Sequence[Row[Any]] | None) -> AtWork:
    alive = True if row.certain or row.running or row.waits_for else None
    ours = None if jobs is None else [_in_hand(job) for job in jobs if job.pid == row.pid]
    return AtWork(row.name, row.pid, row.queues, alive, row.since, row.running, ours, row.waits_for, row.draining)


def _in_hand(row: Row[Any]) -> InHand:
    return InHand(row.id, row.job_class, row.queue, row.since, row.begun, row.state)
