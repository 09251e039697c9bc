"""The locker's own book of what it holds.

Session locks are re-entrant and survive an error or a ROLLBACK, so the server alone cannot tell this process what
it has in hand. Only the locker thread writes here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from uuid import UUID

from ..claim import Busy, Claimed, keys_of

BEGUN_AFTER = 0.05  # seconds that a run lasts before its note says so
ASIDE_FOR = 1.0  # seconds until a job whose outcome could not be recorded is looked at again
ROW_BUSY = 1.0  # seconds, where its row is in somebody's open transaction
WEIGHT = 0.1  # of the last look, in the mean of what it takes to find out that
KEY_BUSY = 0.1  # seconds, where its key runs elsewhere: as a rule the job before it has ended and is about to unlock


class Book:
    """Jobs in hand, in the order they were claimed, and those set aside for a moment."""

    def __init__(self, started: Callable[[Claimed], float | None]) -> None:
        self._started = started  # when a job was, by `time.monotonic`
        self._held: dict[Claimed, None] = {}
        self._unmarked: set[Claimed] = set()  # whose notes do not say "begun" yet
        self._aside: dict[UUID, tuple[Claimed, float]] = {}
        self._lost: set[Claimed] = set()
        self._look = 0.0  # seconds that it takes to find out of one row that it is touched, in the mean

    def __len__(self) -> int:
        return len(self._held)

    @property
    def jobs(self) -> list[Claimed]:
        return list(self._held)

    @property
    def busy(self) -> Busy:
        """What the next claim must leave out."""
        return Busy([*(job.id for job in self._held), *self._aside], keys_of(self._held))

    def enter(self, jobs: Iterable[Claimed]) -> None:
        for job in jobs:
            self._held[job] = None
            if not (job.suspect or job.interrupted):  # theirs say so before they start
                self._unmarked.add(job)

    def strike(self, jobs: Iterable[Claimed]) -> None:
        for job in jobs:
            self._held.pop(job, None)
            self._unmarked.discard(job)
            self._lost.discard(job)

    def lose(self, jobs: Iterable[Claimed]) -> None:
        """These still run here, but their locks are somebody else's now."""
        self._lost.update(jobs)

    def has_lock(self, job: Claimed) -> bool:
        return job not in self._lost

    def put_aside(self, jobs: Iterable[Claimed], seconds: float) -> None:
        self._aside.update({job.id: (job, time.monotonic() + seconds) for job in jobs})

    def put_touched_aside(self, jobs: Collection[Claimed], took: float) -> None:
        """Those whose rows are in somebody's open transaction, found by a claim that took so many seconds.

        Of very many each is looked at again later: all looks together take half of the time at most. Else the first
        would be back before the last was looked at, and what lies behind them would never be reached.
        """
        if jobs:
            self._look += WEIGHT * (took / len(jobs) - self._look)
            self.put_aside(jobs, max(ROW_BUSY, 2 * self._look * (len(jobs) + len(self._aside))))

    def back(self) -> list[Claimed]:
        """Those that have been aside for long enough, and are so no more."""
        now = time.monotonic()
        over = [job for job, until in self._aside.values() if until <= now]
        for job in over:
            del self._aside[job.id]
        return over

    def holds(self, job: Claimed) -> bool:
        return job in self._held

    def seconds_to_mark(self) -> float | None:
        """How long until the next note may have to say that its run has begun."""
        now = time.monotonic()
        since = [self._started(job) or now for job in self._unmarked]  # what waits can start in this moment
        return max(0.0, min(since) + BEGUN_AFTER - now) if since else None

    def due_to_mark(self) -> list[Claimed]:
        """The runs whose notes have to say so now."""
        before = time.monotonic() - BEGUN_AFTER
        return [job for job in self._unmarked if (since := self._started(job)) is not None and since <= before]

    def mark(self, jobs: Iterable[Claimed]) -> None:
        """The notes of these say so."""
        self._unmarked.difference_update(jobs)

    def seconds_aside(self) -> float | None:
        """How long until something set aside is worth another look."""
        times = [until for _, until in self._aside.values()]
        return max(0.0, min(times) - time.monotonic()) if times else None
