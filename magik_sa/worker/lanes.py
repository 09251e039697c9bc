"""Jobs that wait for a thread: a lane for each queue, its most urgent job first, and the lanes in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from itertools import groupby

from ..claim import Claimed

Lane = deque[tuple[float, Claimed]]  # since when each has waited


class Lanes:
    """Of one tray, under its lock."""

    def __init__(self) -> None:
        self._turns: deque[Lane] = deque()
        self._by_queue: dict[str, Lane] = {}
        self.count = 0

    def put(self, jobs: Sequence[Claimed], now: float) -> None:
        """These wait from now on; those of a queue are in the order of a claim."""
        for queue, some in groupby(jobs, key=lambda job: job.row["queue"]):
            lane = self._of(queue)
            before = len(lane)
            lane.extend((now, job) for job in some)
            if before and _order(lane[before]) < _order(lane[before - 1]):
                ordered = sorted(lane, key=_order)
                lane.clear()
                lane.extend(ordered)
        self.count += len(jobs)

    def next(self) -> Claimed:
        """The first of the lane whose turn it is; there has to be one."""
        while not self._turns[0]:
            self._turns.rotate(-1)
        _, job = self._turns[0].popleft()
        self._turns.rotate(-1)
        self.count -= 1
        return job

    def take_back(self, before: float) -> list[Claimed]:
        """Those that have waited since then or longer."""
        return [job for lane in self._turns for job in self._taken(lane, before)]

    def take_back_of(self, queues: Collection[str]) -> list[Claimed]:
        """Those of these queues."""
        return [job for queue in queues for job in self._taken(self._of(queue), float("inf"))]

    def queues(self) -> set[str]:
        """Of which some wait."""
        return {name for name, lane in self._by_queue.items() if lane}

    def since(self) -> float | None:
        """Since when the one waits that has waited the longest; None where none does."""
        return min((since for lane in self._turns for since, _ in lane), default=None)

    def _taken(self, lane: Lane, before: float) -> Iterator[Claimed]:
        waiting = list(lane)
        lane.clear()
        lane.extend(each for each in waiting if each[0] > before)
        self.count -= len(waiting) - len(lane)
        return (job for since, job in waiting if since <= before)

    def _of(self, queue: str) -> Lane:
        if queue not in self._by_queue:
            self._by_queue[queue] = deque()
            self._turns.append(self._by_queue[queue])
        return self._by_queue[queue]


def _order(waiting: tuple[float, Claimed]) -> tuple[int, datetime, int]:
    _, job = waiting
    return job.row["priority"], job.row["run_at"], job.id.int
