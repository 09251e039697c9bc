"""Marks: how far the walk of a queue has come in each priority, so that it need not begin at the head again.

Before a mark lies what has ended, runs, or is locked elsewhere, and what an old snapshot keeps of all that: walked
past once, not at every claim. What comes to lie there later is found by a *full* walk, which knows the same priorities
and no marks: at once where there is a reason (a wake-up, a walk that found less than was asked for), and every few
seconds where there is none.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ..unreadable import EARLIEST

FULL_EVERY = 5.0  # seconds; a poll interval that is shorter counts instead
SHARE = 0.01  # of the time, for full walks
SAVED = 0.1  # seconds of full walks that a quiet time saves up: the share of ten seconds
KNOWN = 64  # priorities that are remembered; a walk finds any other too, a step later


class Place(NamedTuple):
    """A place in the order of one priority: what is greater lies behind it."""

    run_at: datetime
    id: UUID


START = Place(EARLIEST, UUID(int=0))


class Found(NamedTuple):
    """A candidate that a walk has locked."""

    id: UUID
    priority: int
    run_at: datetime

    @property
    def place(self) -> Place:
        """No mark stands at a time that Python cannot hold: such rows are few, and walked past each time."""
        return START if self.run_at <= EARLIEST else Place(self.run_at, self.id)


class Budget:
    """The time for full walks, one for all queues of a worker: their share of it, a little of which can be saved up.

    A walk costs what the cheapest of the last five did: what else the machine does can only add to that, and a walk
    that happened to be slow would keep the next wake-up waiting for fifty times as long.
    """

    def __init__(self) -> None:
        self._saved, self._at = SAVED, time.monotonic()
        self._costs: deque[float] = deque(maxlen=5)

    def spend(self, seconds: float) -> None:
        self._costs.append(seconds)
        self._saved = self._left() - min(self._costs)

    def seconds(self) -> float:
        """Until there is some left; 0 if there is."""
        return max(0.0, -self._left() / SHARE)

    def _left(self) -> float:
        now = time.monotonic()
        self._saved, self._at = min(SAVED, self._saved + SHARE * (now - self._at)), now
        return self._saved


class Marks:
    """The marks of one queue, and when it has to be walked in full."""

    def __init__(self, budget: Budget, every: float) -> None:
        self._budget, self._every = budget, min(every, FULL_EVERY)
        self._places: dict[int, Place] = {}  # those that were seen last stand last
        self._owed, self._overdue_at = True, 0.0

    @property
    def places(self) -> dict[int, Place]:
        """The known priorities in their order, each with its mark."""
        return dict(sorted(self._places.items()))

    # ---- the full walk

    def owe(self) -> None:
        """There is a reason for a full walk."""
        self._owed = True

    def insist(self) -> None:
        """There is one that comes seldom and cannot wait."""
        self._owed, self._overdue_at = True, 0.0

    def is_due(self) -> bool:
        """Whether the next walk has to be a full one. Overdue it is made whatever it costs."""
        return time.monotonic() >= self._overdue_at or self.seconds() == 0

    def seconds(self) -> float | None:
        """Until the full walk for which there is a reason; None where there is none."""
        if not self._owed:
            return None
        return min(self._budget.seconds(), max(0.0, self._overdue_at - time.monotonic()))

    def walked_in_full(self, visited: Iterable[int], cost: float) -> None:
        """One was made, in `cost` seconds, and saw these priorities, the most urgent first."""
        self._owed, self._overdue_at = False, time.monotonic() + self._every
        self._budget.spend(cost)
        for priority in reversed(list(visited)):
            self._see(priority)

    # ---- the marks

    def move(self, found: Sequence[Found], short: bool, edge: datetime) -> None:
        """After a walk: its last priority is passed up to the last row, those more urgent altogether.

        `short`: it found less than was asked for, so all are passed. No mark passes the `edge`: a transaction that has
        been open since then may yet commit a row with a time from before.
        """
        for row in found:
            self._see(row.priority)
        last = None if short else found[-1]
        for priority in self._places:
            if last is None or priority < last.priority:
                self._places[priority] = Place(edge, START.id)
            elif priority == last.priority:
                self._places[priority] = min(last.place, Place(edge, START.id))
        for priority in list(self._places)[:-KNOWN]:
            del self._places[priority]

    def step_back(self, row: Found) -> None:
        """This one is to be found again."""
        before = Place(row.run_at, UUID(int=max(0, row.id.int - 1)))
        if row.priority in self._places:
            self._places[row.priority] = min(self._places[row.priority], before)

    def _see(self, priority: int) -> None:
        self._places[priority] = self._places.pop(priority, START)
