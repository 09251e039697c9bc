"""What the locker hears, and when it listens.

At once, but to a flood of notifications that lead to nothing only now and then. Anybody who may connect may notify, any
number of times a second. What comes while the ear is shut stays in the socket, and is heard with the next look, all of
it as one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from typing import Final

from ..wake import PAUSES

IN_VAIN: Final = 10  # looks within a second that found nothing, and then the ear is shut after each
SHUT_FOR: Final = 0.05  # seconds
PAUSES_EVERY: Final = 0.05  # seconds between two looks at pauses, however often we are told of them


class Ear:
    """Remembers what is to be looked at, and what listening has led to of late."""

    def __init__(self, queues: Collection[str]) -> None:
        self._queues = queues
        self._told: set[str] = set()
        self._told_of_pauses, self._pauses_at = False, 0.0
        self._in_vain: deque[float] = deque(maxlen=IN_VAIN)
        self._heard = self._looking = False

    def hear(self, queue: str) -> None:
        """A notification: of jobs, or that queues were paused or resumed. Of what is not worked here nothing comes."""
        if queue == PAUSES:
            self._told_of_pauses = True
            self.tell_of_all()
        elif queue in self._queues:
            self._told.add(queue)
        else:
            return
        self._heard = True

    def tell_of_all(self) -> None:
        """There is another reason to look at all queues."""
        self._told.update(self._queues)

    @property
    def is_told(self) -> bool:
        """Whether there is something to look at."""
        return bool(self._told)

    def looks(self) -> set[str]:
        """The locker looks for jobs, because something was heard or without; the queues that it was told of."""
        told, self._told = self._told, set()
        self._looking, self._heard = self._heard, False
        return told

    def led_to(self, found: int) -> None:
        """So many jobs were found by that look."""
        if found:
            self._in_vain.clear()
        elif self._looking:
            self._in_vain.append(time.monotonic())

    def seconds_shut(self) -> float:
        """How long not to listen from now on; as a rule 0."""
        now = time.monotonic()
        if len(self._in_vain) < IN_VAIN or now - self._in_vain[0] > 1.0:
            return 0.0
        return max(0.0, self._in_vain[-1] + SHUT_FOR - now)

    def seconds_to_pauses(self) -> float | None:
        """Until what has been paused and resumed is looked at; None where we were told of nothing."""
        return max(0.0, self._pauses_at - time.monotonic()) if self._told_of_pauses else None

    def looks_at_pauses(self) -> None:
        """That is done now."""
        self._told_of_pauses, self._pauses_at = False, time.monotonic() + PAUSES_EVERY
