"""What a worker has in hand: jobs that run, jobs that wait for a thread, suspects that wait for their turn."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from ..claim import Claimed
from .book import Book
from .pace import MOST
from .suspects import Suspects
from .tray import Tray

REFILL_EVERY = 0.01  # seconds until a tray that is more than half full is filled up: something urgent may have come
PATIENCE = 0.1  # seconds that a job waits here for a thread before others may have it


class Stock:
    """How much of it there may be; and what of it waits. Only the locker thread changes it."""

    def __init__(self, concurrency: int) -> None:
        self.tray, self.suspects = Tray(), Suspects()
        self.book = Book(self.tray.started)
        self._concurrency = concurrency
        self._refill_at = 0.0
        self.leaving: list[Claimed] = []  # struck, and being given back just now

    def free(self) -> int:
        """Threads without a job; below 0 so many jobs wait for one. Suspects have no thread before their turn."""
        return self._concurrency - len(self.book) + len(self.suspects)

    def room(self) -> int:
        """How many jobs to claim: one for each thread that is free, and those that the threads will start soon."""
        free, soon = self.free(), self._soon()
        if free <= 0 and self._is_half_full(soon) and time.monotonic() < self._refill_at:
            return 0
        most = max(MOST, self._concurrency) - len(self.book)
        return max(0, min(free + soon, most))

    def wait_at_leisure(self) -> None:
        """While the threads have enough to do, and the locker has no reason to look sooner; not at all as a rule."""
        half, seconds = self._soon() // 2, self._refill_at - time.monotonic()
        if seconds > 0:
            self.tray.wait_for_few(half, seconds)

    def _is_half_full(self, soon: int) -> bool:
        return 2 * len(self.tray) > soon

    def share(self, queues: int) -> int:
        """What one of so many queues may have of it at once: the free threads, and its part of the tray."""
        return min(self.room(), max(0, self.free()) + -(-self._soon() // queues))

    def filled(self) -> None:
        """All queues have been asked."""
        self._refill_at = time.monotonic() + REFILL_EVERY

    def enter(self, jobs: list[Claimed]) -> None:
        """Claimed: they may be started, but for suspects."""
        self.book.enter(jobs)
        self.suspects.add(job for job in jobs if job.suspect)
        self.tray.put(job for job in jobs if not job.suspect)

    def take_back(self, waited: float = 0.0) -> list[Claimed]:
        """Strike and return those that nobody has started, if they have waited for so many seconds."""
        unstarted = [*self.tray.take_back(waited), *self.suspects.take_back(waited)]
        self.strike(unstarted)
        return unstarted

    def drop(self) -> list[Claimed]:
        """Strike and return all that nobody has started, whose locks went with the connection."""
        leaving, self.leaving = self.leaving, []
        return [*leaving, *self.take_back()]

    def unstarted(self) -> set[str]:
        """The queues of what waits here."""
        return self.tray.queues() | self.suspects.queues()

    def take_back_of(self, queues: Collection[str]) -> list[Claimed]:
        """Strike and return what waits here of these queues."""
        unstarted = [*self.tray.take_back_of(queues), *self.suspects.take_back_of(queues)]
        self.strike(unstarted)
        return unstarted

    def strike(self, jobs: Iterable[Claimed]) -> None:
        """These are in hand no more."""
        jobs = list(jobs)
        self.book.strike(jobs)
        self.tray.strike(jobs)

    def seconds_to_suspect(self) -> float | None:
        """Until one may start; None where none waits, or no thread is free."""
        return self.suspects.seconds(self.book.holds) if self.free() > 0 else None

    def start_suspect(self) -> None:
        """It is its turn, and its note says so."""
        self.tray.put([self.suspects.next()])

    def seconds_to_late(self) -> float | None:
        """Until one will have waited for too long: the jobs before it last for longer than was expected."""
        waits = (self.tray.seconds_to(PATIENCE), self.suspects.seconds_to(PATIENCE))
        return min((wait for wait in waits if wait is not None), default=None)

    def _soon(self) -> int:
        return self.tray.soon(self._concurrency)
