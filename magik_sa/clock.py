"""The clock on the wall of a zone, which is put forward and back: what it shows, and when it first shows a time.

Two kinds of times, and only times of one kind are ever compared: *instants* are aware and in UTC; *local* ones are
what the clock shows, without a zone. (Python compares two aware times of one zone by what the clock shows, which in a
repeated hour is wrong.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

SECOND: Final = timedelta(seconds=1)
HOUR: Final = timedelta(hours=1)
INSTANTLY: Final = timedelta(microseconds=1)


def shown(instant: datetime, zone: tzinfo) -> datetime:
    """What the clock shows at an instant."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def instant_of(local: datetime, zone: tzinfo, fold: int = 0) -> datetime:
    """When the clock shows this: the first time, or with ``fold=1`` the last. A time that it skips is counted on from
    before the change, or back from after it.
    """
    return local.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def reached(local: datetime, zone: tzinfo) -> datetime:
    """The first instant at which the clock shows `local` or, where that is skipped, a later time."""
    counted_on = instant_of(local, zone)
    if shown(counted_on, zone) == local:
        return counted_on
    return _first(instant_of(local, zone, fold=1), counted_on, lambda instant: shown(instant, zone) >= local)


def passed(instant: datetime, zone: tzinfo) -> datetime:
    """The latest of the local times that the clock has shown up to an instant."""
    latest = shown(instant, zone)
    back = instant - instant_of(latest, zone)  # the clock was put back by so much, and shows this again
    if not back:
        return latest
    return _first(latest, latest + back, lambda later: instant_of(later, zone) > instant) - INSTANTLY


def changed(start: datetime, end: datetime, zone: tzinfo) -> datetime | None:
    """The first instant after `start`, up to `end`, at which the clock is put forward or back."""
    offset = start.astimezone(zone).utcoffset()
    while start < end:
        later = min(start + HOUR, end)
        if later.astimezone(zone).utcoffset() != offset:
            return _first(start, later, lambda instant: instant.astimezone(zone).utcoffset() != offset)
        start = later
    return None


def _first(low: datetime, high: datetime, holds: Callable[[datetime], bool]) -> datetime:
    """The first whole second after `low`, up to `high`, from which on something holds."""
    low = low.replace(microsecond=0)
    seconds = range(1, -((low - high) // SECOND))
    return low + SECOND * (1 + bisect_left(seconds, True, key=lambda second: holds(low + SECOND * second)))
