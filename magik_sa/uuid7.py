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
_STEP_BITS: Final = 32


class Clock:
    """Makes ids that grow, within a process, even where its clock stands still or is set back."""

    def __init__(self) -> None:
        self._lock, self._millis, self._tail = Lock(), 0, 0

    def __call__(self) -> UUID:
        """The next id."""
        now = time.time_ns() // 1_000_000
        with self._lock:
            self._advance(now)
            millis, tail = self._millis, self._tail
        upper, lower = tail >> 62, tail & (1 << 62) - 1
        return UUID(int=millis << 80 | 0x7 << 76 | upper << 64 | 0b10 << 62 | lower)

    def _advance(self, now: int) -> None:
        if now <= self._millis:
            self._tail += 1 + _random(_STEP_BITS)
            if self._tail < 1 << _TAIL_BITS:
                return
            now = self._millis + 1
        self._millis, self._tail = now, _random(_START_BITS)


def _random(bits: int) -> int:
    return int.from_bytes(os.urandom((bits + 7) // 8)) & (1 << bits) - 1


uuid7: Final = Clock()
