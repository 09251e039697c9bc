"""The tray: jobs that are locked and wait for a thread, the most urgent of each queue first, the queues in turn."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterable
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from ..claim import Claimed
from .pace import SOON, Pace


class Waiting(NamedTuple):
    """A job in the tray, in the order of its queue."""

    priority: int
    run_at: datetime
    id: int
    since: float
    job: Claimed


class Tray:
    """The locker puts jobs in and may take them back; a performer that gets one has started it."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._queues: deque[list[Waiting]] = deque()
        self._by_name: dict[str, list[Waiting]] = {}
        self._closed = False
        self._busy_since: dict[int, float] = {}  # thread -> since when it has had a job
        self._started: dict[Claimed, float] = {}
        self.pace = Pace()

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    # ---- for the locker

    def put(self, jobs: Iterable[Claimed]) -> None:
        """These may be started."""
        now, jobs = time.monotonic(), list(jobs)
        with self._change:
            for job in jobs:
                heappush(self._of(job.row["queue"]), Waiting(*_order(job), now, job))
            self._change.notify(len(jobs))

    def take_back(self, waited: float = 0.0) -> list[Claimed]:
        """Those that nobody has started, if they have waited for so many seconds; they will not be started any more."""
        before, back = time.monotonic() - waited, []
        with self._change:
            for queue in self._queues:
                back += [waiting.job for waiting in queue if waiting.since <= before]
                queue[:] = [waiting for waiting in queue if waiting.since > before]
                heapify(queue)
        return back

    def take_back_of(self, queues: Collection[str]) -> list[Claimed]:
        """Those of these queues that nobody has started; they will not be started any more."""
        back: list[Claimed] = []
        with self._change:
            for name in queues:
                waiting = self._of(name)
                back += [each.job for each in waiting]
                waiting.clear()
        return back

    def queues(self) -> set[str]:
        """Of which some wait."""
        with self._change:
            return {name for name, waiting in self._by_name.items() if waiting}

    def seconds_to(self, waited: float) -> float | None:
        """Until one will have waited for so long; None where none waits."""
        with self._change:
            first = min((waiting.since for queue in self._queues for waiting in queue), default=None)
        return None if first is None else max(0.0, first + waited - time.monotonic())

    def started(self, job: Claimed) -> float | None:
        """When this one was started; None if it was not, or has been struck."""
        return self._started.get(job)

    def strike(self, jobs: Iterable[Claimed]) -> None:
        """These runs are over."""
        for job in jobs:
            self._started.pop(job, None)

    def soon(self, threads: int) -> int:
        """How many jobs so many threads will start soon, those not counted that have had theirs for longer."""
        before = time.monotonic() - SOON
        lasting = sum(since < before for since in list(self._started.values()))
        return self.pace.soon(max(0, threads - lasting))

    def close(self) -> None:
        """Nobody gets another job."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    # ---- for the performers

    def get(self, timeout: float | None = None) -> Claimed | None:
        """The next job, as soon as there is one; None when there will be no more, or none came in time."""
        thread, now = threading.get_ident(), time.monotonic()
        with self._change:
            if (since := self._busy_since.pop(thread, None)) is not None:
                self.pace.note(now - since)
            self._change.wait_for(lambda: self._closed or len(self) > 0, timeout)
            if self._closed or not len(self):
                return None
            job = self._next()
            self._busy_since[thread] = self._started[job] = time.monotonic()
        return job

    def _next(self) -> Claimed:
        while not self._queues[0]:
            self._queues.rotate(-1)
        job = heappop(self._queues[0]).job
        self._queues.rotate(-1)
        return job

    def _of(self, name: str) -> list[Waiting]:
        if name not in self._by_name:
            self._by_name[name] = []
            self._queues.append(self._by_name[name])
        return self._by_name[name]


def _order(job: Claimed) -> tuple[int, datetime, int]:
    return job.row["priority"], job.row["run_at"], job.id.int
