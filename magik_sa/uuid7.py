"""Ids that the client makes, in the order of time: UUIDv7 (RFC 9562).

`job.id` is thus known before any flush, and new rows go to the right-hand end of their indexes.
"""

from __future__ import annotations

import os
import time
from threading import Lock
from typing import Final
from uuid import UUID

_TAIL_BITS: Final = 74  # what is left beside 48 bits of milliseconds, 4 of version and 2 of variant
_START_BITS: Final = 73  # the topmost bit is kept free, so that counting on within a millisecond has room
_STEP: Final = 4  # bytes of chance between two ids of a millisecond
_LOT: Final = 1024  # bytes of it that are asked of the system at once: a call for each id would take as long as the id


class Clock:
    """Makes ids that grow, within a process, even where its clock stands still or is set back."""

    def __init__(self) -> None:
        self._lock, self._millis, self._tail = Lock(), 0, 0
        self._chance, self._used = b"", 0

    def __call__(self) -> UUID:
        """The next id."""
        now = time.time_ns() // 1_000_000
        with self._lock:
            made = self._next(now)
        return UUID(int=made)

    def several(self, count: int) -> list[str]:
        """The next ones, in hexadecimal: half of making an id is the object."""
        now = time.time_ns() // 1_000_000
        with self._lock:
            made = [self._next(now) for _ in range(count)]
        return [f"{each:032x}" for each in made]

    def begin_anew(self) -> None:
        """In a forked child, which would go on as its parent does."""
        self._lock, self._millis, self._chance = Lock(), 0, b""

    def _next(self, now: int) -> int:
        self._advance(now)
        upper, lower = self._tail >> 62, self._tail & (1 << 62) - 1
        return self._millis << 80 | 0x7 << 76 | upper << 64 | 0b10 << 62 | lower

    def _advance(self, now: int) -> None:
        if now <= self._millis:
            self._tail += 1 + self._step()
            if self._tail < 1 << _TAIL_BITS:
                return
            now = self._millis + 1
        self._millis, self._tail = now, int.from_bytes(os.urandom(10)) & (1 << _START_BITS) - 1

    def _step(self) -> int:
        if self._used + _STEP > len(self._chance):
            self._chance, self._used = os.urandom(_LOT), 0
        self._used += _STEP
        return int.from_bytes(self._chance[self._used - _STEP : self._used])


uuid7: Final = Clock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=uuid7.begin_anew)
