"""How an idle locker waits: with the flag raised, beside a producer, or beside a waiting peer."""

from __future__ import annotations

import time
from collections.abc import Collection
from enum import Enum
from typing import Any

import psycopg

from .. import wake
from ..claim.walk import Walks
from ..names import Names
from ..wake import Flag

SHORTEST, LONGEST = 0.010, 0.100  # seconds between polls while a producer's transaction is open
PEER_EVERY = 1.0  # seconds between tries of the flag while a peer waits
TOLD_AHEAD = 5.0  # seconds: the triggers notify for what is due within them, what is later has to be asked for
LOOK_AHEAD = 4.0  # seconds until it is, where no poll comes before
HINT = wake.HINT_EVERY.total_seconds()


class Look(Enum):
    """Whether there is reason to look for jobs."""

    NO = "no"
    DUE = "due"  # it is time for one, or for a poll
    DIED = "died"  # what a worker held that is gone


class Idle:
    """The flags of this worker's queues, and when there will be something to look for."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        names: Names,
        queues: Collection[str],
        poll: float,
        walks: Walks,
    ) -> None:
        self._connection, self._names, self._queues, self._poll = connection, names, queues, poll
        self._walks = walks  # by which this worker has looked for what is due
        self._flags: dict[str, Flag] = {}
        self._untold: set[str] = set()  # queues whose flag was given up while threads were free
        self._pause = SHORTEST
        self._poll_at = self._due_at = self._look_at = 0.0
        self._hint_at = time.monotonic()

    def raise_flags(self) -> bool:
        """Try the flags that are not ours yet. True if one was won: what came before must be looked for once more."""
        missing = [queue for queue in self._queues if self._flags.get(queue) is not Flag.OURS]
        tried = {queue: wake.raise_flag(self._connection, self._names, queue) for queue in missing}
        self._flags.update(tried)
        self._untold.clear()
        self._pause = min(self._pause * 2, LONGEST) if Flag.PRODUCER in tried.values() else SHORTEST
        return Flag.OURS in tried.values()

    def lower_flags(self, *, tell: bool) -> None:
        """Give the flags up; `tell` asks a waiting peer to take them (this worker is full, or stops).

        Those given up before without a word are told of then: nobody has waited with a flag since.
        """
        ours = [queue for queue, flag in self._flags.items() if flag is Flag.OURS]
        self._flags.clear()
        self._pause = SHORTEST
        self._untold.update(ours)
        for queue in ours:
            wake.lower_flag(self._connection, self._names, queue)
        if tell and self._untold:
            wake.notify(self._connection, self._names, self._untold)
            self._untold.clear()

    def settle(self, known: Collection[str]) -> None:
        """Nothing is due now: set the times at which to look again."""
        now, flags = time.monotonic(), self._flags.values()
        beside = self._pause if Flag.PRODUCER in flags else PEER_EVERY if Flag.PEER in flags else self._poll
        self._poll_at = now + min(beside, self._poll)
        self._look_ahead(known)

    def seconds(self) -> float:
        """How long to sleep at most before calling `tick`."""
        first = min(self._poll_at, self._due_at, self._look_at, self._hint_at)
        return max(0.0, first - time.monotonic())

    def tick(self, known: Collection[str]) -> Look:
        """Do what the time has come for."""
        now = time.monotonic()
        if self._look_at <= now < self._poll_at:  # after a poll it is looked ahead anyway
            self._look_ahead(known)
        if now >= self._hint_at:
            self._hint_at = now + HINT
            if wake.hint(self._connection, self._names):
                return Look.DIED
        return Look.DUE if now >= min(self._poll_at, self._due_at) else Look.NO

    def _look_ahead(self, known: Collection[str]) -> None:
        lefts = [self._seconds_to_next(queue, known) for queue in self._queues]
        now = time.monotonic()
        self._due_at = now + min([float("inf"), *(left + 0.001 for left in lefts if left is not None)])
        self._look_at = self._poll_at if self._poll_at <= now + TOLD_AHEAD else now + LOOK_AHEAD

    def _seconds_to_next(self, queue: str, known: Collection[str]) -> float | None:
        priorities, walked = self._walks.priorities(queue), self._walks.looked_at(queue)
        return wake.seconds_to_next(self._connection, self._names, queue, known, priorities, walked)
