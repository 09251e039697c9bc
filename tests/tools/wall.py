"""What a cron means, the slow way: somebody looks at the clock on the wall each minute and at the table in the docs.

Shares nothing with the package: fields are read anew, and nothing is computed of the clock but what it shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WORDS = dict(zip([*DAYS, *MONTHS], [*range(7), *range(1, 13)], strict=True))


def number(said: str) -> int:
    """A value of a field, by number or by name."""
    return WORDS[said.upper()] if said.isalpha() else int(said)


@cache
def means(field: str, value: int) -> bool:
    """Whether a field names this value."""
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        first = 0 if span == "*" else number(low)
        last = 99 if span == "*" else number(high or low)
        if first <= value <= last and (value - first) % int(step or 1) == 0:
            return True
    return False


def fits(cron: str, local: datetime) -> bool:
    """Whether a cron means this minute of the calendar. (Days and months with steps count from 1.)"""
    minute, hour, day, month, weekday = cron.split()
    if not (means(minute, local.minute) and means(hour, local.hour)):
        return False
    if month.startswith("*/"):
        month = "1-12" + month[1:]
    if not means(month, local.month):
        return False
    by_date = means("1-31" + day[1:] if day.startswith("*/") else day, local.day)
    by_name = means(weekday, local.isoweekday() % 7) or (local.isoweekday() == 7 and means_seven(weekday))
    starred = day.startswith("*") or weekday.startswith("*")
    return by_date and by_name if starred else by_date or by_name


def means_seven(weekday: str) -> bool:
    """Sunday is 7 as well, but not for a star."""
    return not weekday.startswith("*") and means(weekday, 7)


def minutes(zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Each minute of UTC, with what the clock shows."""
    while start <= end:
        yield start, start.astimezone(zone).replace(tzinfo=None, fold=0)
        start += MINUTE


def dues(cron: str, zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    """When it is due from `start` to `end`: as often as the clock shows it, or once for each time of the day."""
    minute, hour, *_ = cron.split()
    if minute.startswith("*") or hour.startswith("*"):
        yield from (instant for instant, local in minutes(zone, start, end) if fits(cron, local))
        return
    highest = max(local for _, local in minutes(zone, start - DAY - HOUR, start - MINUTE))
    for instant, local in minutes(zone, start, end):
        if local > highest:
            if any(fits(cron, each) for each in between(highest, local)):
                yield instant
            highest = local


def between(before: datetime, local: datetime) -> list[datetime]:
    """The minutes that are new on the clock: the one it shows, and those it skipped; a date that it skips is none."""
    skipped = (before + MINUTE * n for n in range(1, (local - before) // MINUTE + 1))
    return [each for each in skipped if each.date() in (before.date(), local.date())]


def changes(zone: ZoneInfo, years: range) -> list[datetime]:
    """The instants in these years, to the minute, at which the clock is put forward or back."""
    found, at, offset = [], datetime(years.start, 1, 1, tzinfo=UTC), None
    while at.year < years.stop:
        now = at.astimezone(zone).utcoffset()
        if offset is not None and now != offset:
            late = (at - MINUTE * n for n in range(24 * 60))
            found.append(next(each for each in late if (each - MINUTE).astimezone(zone).utcoffset() == offset))
        at, offset = at + DAY, now
    return found
