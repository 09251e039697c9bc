"""Jobs that may have killed a worker before their notes said that they had begun: they start one after the other.

Whichever of them does it again does it soon, and then alone: the others are still unbegun, and lose no try.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable

from ..claim import Claimed

PROBATION = 0.1  # seconds until the next may start beside one that has not ended


class Suspects:
    """Those that are locked and wait for their turn."""

    def __init__(self) -> None:
        self._line: deque[tuple[Claimed, float]] = deque()
        self._last: Claimed | None = None
        self._free_at = 0.0

    def __len__(self) -> int:
        return len(self._line)

    def add(self, jobs: Iterable[Claimed]) -> None:
        """These wait from now on."""
        self._line.extend((job, time.monotonic()) for job in jobs)

    def seconds(self, runs: Callable[[Claimed], bool]) -> float | None:
        """Until the next may start; None where none waits. `runs` tells whether the last one still does."""
        if not self._line:
            return None
        alone = self._last is None or not runs(self._last)
        return 0.0 if alone else max(0.0, self._free_at - time.monotonic())

    @property
    def first(self) -> Claimed:
        """Whose turn is next."""
        return self._line[0][0]

    def next(self) -> Claimed:
        """It starts now."""
        job, _ = self._line.popleft()
        self._last, self._free_at = job, time.monotonic() + PROBATION
        return job

    def take_back(self, waited: float = 0.0) -> list[Claimed]:
        """Those that have waited for so many seconds; they will not be started any more."""
        before = time.monotonic() - waited
        back = [job for job, since in self._line if since <= before]
        self._line = deque((job, since) for job, since in self._line if since > before)
        return back

    def take_back_of(self, queues: Collection[str]) -> list[Claimed]:
        """Those of these queues; they will not be started any more."""
        back = [job for job, _ in self._line if job.row["queue"] in queues]
        self._line = deque(each for each in self._line if each[0].row["queue"] not in queues)
        return back

    def queues(self) -> set[str]:
        """Of which some wait."""
        return {job.row["queue"] for job, _ in self._line}

    def seconds_to(self, waited: float) -> float | None:
        """Until one will have waited for so long."""
        return max(0.0, self._line[0][1] + waited - time.monotonic()) if self._line else None
