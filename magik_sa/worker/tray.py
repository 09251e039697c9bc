"""The tray: jobs that are locked and wait for a thread, the most urgent of each queue first, the queues in turn."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterable
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from ..claim import Claimed
from .gate import STALLED, Gate
from .pace import SOON, Pace

NEVER: Final = -1


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
        self._few = NEVER
        self._is_low = threading.Event()
        self._taken_at, self._stands_by = 0.0, False
        self._busy_since: dict[int, float] = {}  # thread -> since when it has had a job
        self._started: dict[Claimed, float] = {}
        self.pace, self._gate = Pace(), Gate()

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    # ---- for the locker

    def put(self, jobs: Iterable[Claimed]) -> None:
        """These may be started."""
        now, jobs = time.monotonic(), list(jobs)
        with self._change:
            for job in jobs:
                heappush(self._of(job.row["queue"]), Waiting(*_order(job), now, job))
            self._change.notify(len(jobs) if self._gate.is_open else 2)  # one that works and one that stands by

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

    def wait_for_few(self, few: int, seconds: float) -> None:
        """Until no more than so many wait here, or so many seconds have passed."""
        with self._change:
            self._is_low.clear()
            self._few = few if len(self) > few else NEVER
        if self._few != NEVER:
            self._is_low.wait(seconds)

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
        thread = threading.get_ident()
        with self._change:
            self._back(thread)
            if not self._may_start(timeout):
                return None
            job = self._next()
            self._busy_since[thread] = self._started[job] = self._taken_at = time.monotonic()
            if self._few >= len(self):
                self._few = NEVER
                self._is_low.set()
        return job

    def _back(self, thread: int) -> None:
        """It has done what it had."""
        if (since := self._busy_since.pop(thread, None)) is not None:
            lasted = time.monotonic() - since
            self.pace.note(lasted)
            self._gate.note(lasted, self.pace.mean)

    def _may_start(self, timeout: float | None) -> bool:
        """Whether this thread has a job to take; waits until it has."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            if len(self) and (self._gate.is_open or not self._is_worked_at()):
                return True
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return False
            if len(self) and not self._stands_by:
                self._stand_by()
            else:
                self._change.wait(left)
        return False

    def _is_worked_at(self) -> bool:
        """Whether a thread has begun a job just now, and will be back soon."""
        after = time.monotonic() - STALLED
        return any(since > after for since in self._busy_since.values())

    def _stand_by(self) -> None:
        """Another thread works through what waits here. Should that not go on, all are let in."""
        self._stands_by = True
        self._change.wait(STALLED)
        self._stands_by = False
        if len(self) and time.monotonic() - self._taken_at >= STALLED:
            self._gate.open()
            self._change.notify_all()

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
