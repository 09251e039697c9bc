"""The locker's own book of what it holds.

Session locks are re-entrant and survive an error or a ROLLBACK, so the server alone cannot tell this process what
it has in hand. Only the locker thread writes here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from uuid import UUID

from ..claim import Busy, Claimed

BEGUN_AFTER = 0.05  # seconds that a run lasts before its note says so
ASIDE_FOR = 1.0  # seconds until a job whose outcome could not be recorded is looked at again
KEY_BUSY = 0.1  # seconds, where its key runs elsewhere: as a rule the job before it has ended and is about to unlock
PROBATION = 0.1  # seconds between the starts of two suspects


class Book:
    """Jobs in hand, in the order they were claimed, and ids set aside for a moment."""

    def __init__(self) -> None:
        self._held: dict[UUID, Claimed] = {}
        self._unmarked: dict[UUID, float] = {}  # id -> when its note should say "begun"
        self._aside: dict[UUID, float] = {}
        self._lost: set[UUID] = set()
        self._probation = 0.0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def jobs(self) -> list[Claimed]:
        return list(self._held.values())

    @property
    def busy(self) -> Busy:
        """What the next claim must leave out."""
        now = time.monotonic()
        self._aside = {id: until for id, until in self._aside.items() if until > now}
        keys = [job.key_lock for job in self._held.values() if job.key_lock is not None]
        return Busy([*self._held, *self._aside], keys)

    def enter(self, jobs: Iterable[Claimed]) -> None:
        for job in jobs:
            self._held[job.id] = job
            if not (job.suspect or job.interrupted):  # theirs say so before they start
                self._unmarked[job.id] = time.monotonic() + BEGUN_AFTER

    def strike(self, jobs: Iterable[Claimed]) -> None:
        for job in jobs:
            self._held.pop(job.id, None)
            self._unmarked.pop(job.id, None)
            self._lost.discard(job.id)

    def lose(self, ids: Iterable[UUID]) -> None:
        """These still run here, but their locks are somebody else's now."""
        self._lost.update(ids)

    def has_lock(self, job: Claimed) -> bool:
        return job.id not in self._lost

    def put_aside(self, ids: Iterable[UUID], seconds: float = ASIDE_FOR) -> None:
        self._aside.update(dict.fromkeys(ids, time.monotonic() + seconds))

    def admit(self, jobs: list[Claimed]) -> tuple[list[Claimed], list[Claimed]]:
        """Which of these may start now, and which are to wait: suspects start one after the other.

        Whatever killed the process before any of them was known to have begun does it again within that time, and
        then alone: the others are still unbegun, and lose no try.
        """
        free = [job for job in jobs if not job.suspect]
        suspects = [job for job in jobs if job.suspect]
        if suspects and time.monotonic() >= self._probation:
            self._probation = time.monotonic() + PROBATION
            return [*free, suspects[0]], suspects[1:]
        return free, suspects

    def seconds_to_mark(self) -> float | None:
        """How long until the next note has to say that its run has begun."""
        return None if not self._unmarked else max(0.0, min(self._unmarked.values()) - time.monotonic())

    def due_to_mark(self) -> list[UUID]:
        """The runs whose notes have to say so now."""
        now = time.monotonic()
        return [id for id, when in self._unmarked.items() if when <= now]

    def mark(self, ids: Iterable[UUID]) -> None:
        """The notes of these say so."""
        for id in ids:
            self._unmarked.pop(id, None)

    def seconds_aside(self) -> float | None:
        """How long until something set aside is worth another look."""
        return None if not self._aside else max(0.0, min(self._aside.values()) - time.monotonic())
