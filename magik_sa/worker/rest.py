"""How long a schedule that failed is left alone, and what the log says of it."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from ..errors import JobTimeout, MagikError
from ..failure import kind, raised_at
from ..logs import say
from ..ticks import Tick
from ..timetable import Entry

FIRST_REST, LONGEST_REST = 1.0, 60.0  # seconds before a schedule that failed is tried again
AFTER_LIMIT: Final = 10  # times its limit that one rests which was over it: it held the others up for so long
LONGEST_AFTER_LIMIT = 300.0  # seconds


class Rests:
    """The schedules that failed at their last try. A tick stays due: it fires when the fault is mended."""

    def __init__(self) -> None:
        self._resting: dict[str, Rest] = {}

    def __contains__(self, entry: Entry) -> bool:
        return entry.name in self._resting

    def over(self, tick: Tick) -> bool:
        """Whether this tick may be tried now."""
        rest = self._resting.get(tick.entry.name)
        return rest is None or rest.at != tick.at or time.monotonic() >= rest.until

    def end(self, entry: Entry) -> None:
        """It has not failed."""
        self._resting.pop(entry.name, None)

    def begin(self, entry: Entry, error: BaseException, tick: Tick | None = None) -> None:
        """It has failed: one line, and a rest that grows from try to try of the same tick; longer if it hung."""
        at, rest = tick.at if tick else None, self._resting.get(entry.name)
        pause = min(rest.pause * 2, LONGEST_REST) if rest and rest.at == at else FIRST_REST
        if tick and isinstance(error, JobTimeout):
            pause = max(pause, min(AFTER_LIMIT * tick.limit.total_seconds(), LONGEST_AFTER_LIMIT))
        self._resting[entry.name] = Rest(at, pause)
        reason = error.code if isinstance(error, MagikError) else kind(error)
        fields = {"error": reason, "where": raised_at(error), "next_try_s": pause}
        say(logging.ERROR, "schedule_failed", **described(entry, tick), **fields)


class Rest:
    """One that begins now."""

    def __init__(self, at: str | None, pause: float) -> None:
        self.at, self.pause, self.until = at, pause, time.monotonic() + pause


def described(entry: Entry, tick: Tick | None) -> dict[str, Any]:
    """What a line says of a schedule and its tick."""
    fields = {"schedule": entry.name, "job_class": entry.cls.__magik__.name}
    return {**fields, "tick": tick.moment.isoformat(), "late_s": round(-tick.seconds, 3)} if tick else fields
