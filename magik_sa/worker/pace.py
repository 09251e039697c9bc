"""How many jobs more than there are threads a worker may hold: as many as it will soon start."""

from __future__ import annotations

SOON = 0.05  # seconds
MOST = (
    500  # jobs that a worker holds, unless it has more threads: each is a lock in a table that the whole server shares
)
UNKNOWN = 1.0  # seconds that a job is taken to last before any has ended; no job counts as longer
WEIGHT = 0.1  # of the job that has just ended, in the mean


class Pace:
    """The running mean of how long a job keeps its thread."""

    def __init__(self) -> None:
        self.mean = UNKNOWN

    def note(self, seconds: float) -> None:
        """A thread was kept for so long."""
        self.mean += WEIGHT * (min(seconds, UNKNOWN) - self.mean)

    def soon(self, threads: int) -> int:
        """How many jobs so many threads are expected to start within `SOON`."""
        return min(MOST, int(threads * SOON / max(self.mean, 1e-6)))
