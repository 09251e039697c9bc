"""Imported by the one worker that has this folder on its path: its clock is off by what the file CHAOS_CLOCK says."""

from __future__ import annotations

import datetime
import os
import time
from datetime import datetime as real
from pathlib import Path
from typing import Any

FILE = Path(os.environ["CHAOS_CLOCK"])
TIME, TIME_NS = time.time, time.time_ns


def off() -> float:
    """Seconds by which the clock is wrong."""
    return float(FILE.read_text())


class Kind(type):
    """Moments that others made are moments too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, real)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, real)


class Moment(real, metaclass=Kind):
    """A datetime whose now() is by the wrong clock."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        """By the wrong clock."""
        return real.now(tz) + datetime.timedelta(seconds=off())


time.time = lambda: TIME() + off()
time.time_ns = lambda: TIME_NS() + int(off() * 1e9)
datetime.datetime = Moment  # type: ignore[misc]
