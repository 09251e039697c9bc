"""Imported by the one worker that has this folder on its path: its clock is off by what the file CHAOS_CLOCK says."""

from __future__ import annotations

import datetime
import os
import time
from pathlib import Path
from typing import Any

FILE = Path(os.environ["CHAOS_CLOCK"])
REAL, REAL_NS, MOMENT = time.time, time.time_ns, datetime.datetime


def off() -> float:
    """Seconds by which the clock is wrong."""
    return float(FILE.read_text())


class Kind(type):
    """Moments that others made are moments too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, MOMENT)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, MOMENT)


class Moment(MOMENT, metaclass=Kind):
    """A datetime whose now() is by the wrong clock."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        """By the wrong clock."""
        return MOMENT.now(tz) + datetime.timedelta(seconds=off())


time.time = lambda: REAL() + off()
time.time_ns = lambda: REAL_NS() + int(off() * 1e9)
datetime.datetime = Moment  # type: ignore[misc]
