"""The tray: jobs that are locked and wait, and the threads that take them."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from typing import Final

from ..claim import Claimed
from .gate import STALLED, Gate
from .lanes import Lanes
from .pace import SOON, Pace

NEVER: Final = -1


class Tray:
    """The locker puts jobs in and may take them back; a performer that gets one has started it."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._lanes = Lanes()
        self._closed = False
        self._few = NEVER
        self._is_low = threading.Event()
        self._taken_at, self._stands_by = 0.0, False
        self._busy_since: dict[int, float] = {}  # thread -> since when it has had a job
        self._began: dict[int, float | None] = {}  # thread -> its processor time then
        self._started: dict[Claimed, float] = {}
        self.pace, self._gate = Pace(), Gate()

    def __len__(self) -> int:
        return self._lanes.count

    # ---- for the locker

    def put(self, jobs: Iterable[Claimed]) -> None:
        """These may be started. Those of a queue are in the order of a claim."""
        jobs = list(jobs)
        with self._change:
            self._lanes.put(jobs, time.monotonic())
            self._change.notify(len(jobs) if self._gate.is_open else 2)  # one that works and one that stands by

    def take_back(self, waited: float = 0.0) -> list[Claimed]:
        """Those that nobody has started, if they have waited for so many seconds; they will not be started any more."""
        with self._change:
            return self._lanes.take_back(time.monotonic() - waited)

    def take_back_of(self, queues: Collection[str]) -> list[Claimed]:
        """Those of these queues that nobody has started; they will not be started any more."""
        with self._change:
            return self._lanes.take_back_of(queues)

    def queues(self) -> set[str]:
        """Of which some wait."""
        with self._change:
            return self._lanes.queues()

    def seconds_to(self, waited: float) -> float | None:
        """Until one will have waited for so long; None where none waits."""
        with self._change:
            since = self._lanes.since()
        return None if since is None else max(0.0, since + waited - time.monotonic())

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
        """How many jobs those of so many threads will start soon that are let at them, and have had none for longer."""
        before = time.monotonic() - SOON
        lasting = sum(since < before for since in list(self._started.values()))
        free = max(0, threads - lasting)
        return self.pace.soon(free if self._gate.is_open else min(1, free))

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
                if self._gate.note(now - since, self._began.pop(thread), self.pace.mean, now):
                    self._change.notify_all()
            if not self._may_start(now):
                if not self._wait(timeout):
                    return None
                now = time.monotonic()
            job = self._lanes.next()
            self._busy_since[thread] = self._started[job] = self._taken_at = now
            self._began[thread] = self._gate.began(now)
            if self._lanes.count <= self._few:
                self._few = NEVER
                self._is_low.set()
        return job

    def _may_start(self, now: float) -> bool:
        """Whether there is a job for a thread that is here, with the gate open or nobody at work."""
        if self._closed or not self._lanes.count:
            return False
        return self._gate.is_open or not self._busy_since or not self._is_worked_at(now)

    def _is_worked_at(self, now: float) -> bool:
        """Whether a thread has begun a job just now, and will be back soon."""
        return any(since > now - STALLED for since in self._busy_since.values())

    def _wait(self, timeout: float | None) -> bool:
        """Until this thread may start one; False when there will be none, or none came in time."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._closed and not self._may_start(now := time.monotonic()):
            left = None if until is None else until - now
            if left is not None and left <= 0:
                return False
            if self._lanes.count and not self._stands_by:
                self._stand_by()
            else:
                self._change.wait(left)
        return not self._closed

    def _stand_by(self) -> None:
        """Another thread works through what waits here. Should that not go on, all are let in."""
        self._stands_by = True
        self._change.wait(STALLED)
        self._stands_by = False
        if self._lanes.count and (now := time.monotonic()) - self._taken_at >= STALLED:
            self._gate.open(now)
            self._change.notify_all()
