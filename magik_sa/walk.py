"""From the minutes that a cron means to the instants at which it is due, across changes of the clock.

*Times of the day* ("0 3 * * *") come once a date: when the clock first shows the time, or has skipped it. *Elapsing*
ones ("*/15 * * * *") come as often as the clock shows one of their minutes.
"""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import Final

from .clock import INSTANTLY, changed, passed, reached, shown
from .cron import Cron
from .errors import DeclarationError

MOST_APART: Final = timedelta(days=2)  # two clocks of one zone, at any two instants: each is less than a day from UTC
YEARS: Final = timedelta(days=50 * 365)  # beyond the 40 between two 29 Februaries of one weekday around the year 2100


def following(cron: Cron, zone: tzinfo, now: datetime) -> datetime:
    """The first instant after `now` (UTC, both) at which `cron` is due.

    Raises `DeclarationError` ``MAGIK_SCHEDULE_NEVER`` where there is none: every time it means may be one that the
    clock skips.
    """
    return _elapsing(cron, zone, now) if cron.elapses else _time_of_day(cron, zone, now)


def _time_of_day(cron: Cron, zone: tzinfo, now: datetime) -> datetime:
    local, instant = passed(now, zone), now
    while instant <= now:
        local = cron.following(local)
        instant = reached(local, zone)
        if _is_on_no_date(local, instant, zone):
            local, instant = local.replace(hour=23, minute=59), now
    return instant


def _is_on_no_date(local: datetime, instant: datetime, zone: tzinfo) -> bool:
    """Whether the zone skips the whole date, as one that moves across the date line does."""
    if shown(instant, zone) == local:
        return False
    midnight = local.replace(hour=0, minute=0)
    return shown(reached(midnight, zone), zone).date() > local.date()


def _elapsing(cron: Cron, zone: tzinfo, now: datetime) -> datetime:
    """Walk on as if the clock would stay as it is, up to where it is changed, and from there again.

    Over a long way only its two ends need a look: what is due elsewhere would be in the calendar between them.
    """
    instant, after = now, shown(now, zone)
    while instant - now < YEARS:
        due = instant + (cron.following(after) - shown(instant, zone))
        far = due - instant > 2 * MOST_APART
        change = changed(instant, instant + MOST_APART if far else due, zone)
        if change is None and not far:
            return due
        instant = change or due - MOST_APART
        after = shown(instant, zone) - INSTANTLY
    what = f"cron={cron.text!r} in {zone}: the clock skips each of its times."
    raise DeclarationError("MAGIK_SCHEDULE_NEVER", what, field="cron")
