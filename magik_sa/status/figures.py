"""What a status is made of. None stands for what could not be found out, and is never a zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

MOST: Final = 100_000  # rows of a queue that are counted in one state


@dataclass
class Queue:
    """The figures of one queue. `at_least` names those that were not counted to the end.

    `errored` counts the live jobs that have failed at least once, whether they are ready, running or scheduled.
    `oldest_queued_seconds` is the age of the job that has been due for the longest and is not claimed; 0 without one.
    `ended_last_minute` is what its live workers have said to have ended, well or as dead letters; None without one.
    """

    name: str
    ready: int | None = None
    running: int | None = None
    scheduled: int | None = None
    errored: int | None = None
    expired: int | None = None
    oldest_queued_seconds: float | None = None
    ended_last_minute: int | None = None
    workers: int | None = None
    paused: bool | None = None
    paused_by: str | None = None
    paused_at: str | None = None  # in UTC
    at_least: list[str] = field(default_factory=list)

    def count(self, name: str, rows: int, more: bool) -> None:
        """Set a figure, with a mark where there may be more."""
        setattr(self, name, rows)
        if more:
            self.at_least.append(name)


@dataclass(frozen=True)
class Worker:
    """One worker, by its locking connection. `alive` is None where that cannot be told from here.

    `running` are the jobs whose locks it holds; it sleeps until something comes in the queues of `waits_for`. `ended`
    are the jobs that have ended there in the last minute, for each of `queues`. `draining`: it has been told to end.
    """

    name: str
    pid: int
    queues: Sequence[str]
    alive: bool | None
    running: int
    waits_for: Sequence[str]
    ended: Sequence[int]
    draining: bool


@dataclass(frozen=True)
class Schedule:
    """A schedule, with its times in UTC. `due`: not paused, and its time has come. `stale`: that, and no worker took
    the tick for a minute, or no worker is alive to take it. `deaths`: of workers in the middle of this tick, one after
    the other; from the second on it `rests`.
    """

    name: str
    job_class: str
    declaration: dict[str, Any]
    next_run_at: str
    last_run_at: str | None
    paused: bool
    paused_by: str | None
    paused_at: str | None
    due: bool
    stale: bool
    deaths: int
    rests: bool


@dataclass(frozen=True)
class Unserved:
    """Due jobs of a class that no live worker could run, as far as can be told.

    `why`: ``no_worker`` works their queue, or those that do wait for work and have passed them over (``passed_over``):
    then none of them knows the class.
    """

    job_class: str
    queue: str
    ready: int
    oldest_queued_seconds: float
    why: str


@dataclass
class Status:
    """All of it. A list is None where it could not be asked for; `unknown` says what is missing, and why."""

    queues: list[Queue] | None = None
    workers: list[Worker] | None = None
    schedules: list[Schedule] | None = None
    unserved: list[Unserved] | None = None
    unknown: dict[str, str] = field(default_factory=dict)
