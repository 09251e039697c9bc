"""The five fields of a cron: what they may say, and which minutes of the calendar they mean.

Everything is read here, by the grammar of docs/schedules.md, and what it does not define is refused. croniter walks
over the times of a day. It sees plain lists of numbers, so that no reading of its own can come in, and no dates: its
version 6.0 goes past the 1st after a month that has no 31st, and finds no date for "0 0 30 2 SUN".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple

from .errors import DeclarationError

MINUTE: Final = timedelta(minutes=1)
DAY: Final = timedelta(days=1)
DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
LONGEST_MONTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_NUMBER: Final = r"(\d{1,2}|[A-Z]{3})"
_PART: Final = re.compile(rf"{_NUMBER}(?:-{_NUMBER}(?:/(\d{{1,2}}))?)?", re.ASCII)
_STAR: Final = re.compile(r"\*(?:/(\d{1,2}))?", re.ASCII)


class Kind(NamedTuple):
    """One of the five fields: its name, its smallest and largest value, and the words that stand for values."""

    name: str
    low: int
    high: int
    words: Mapping[str, int]


FIELDS: Final = (
    Kind("minute", 0, 59, {}),
    Kind("hour", 0, 23, {}),
    Kind("day of month", 1, 31, {}),
    Kind("month", 1, 12, {word: number for number, word in enumerate(MONTHS, 1)}),
    Kind("day of week", 0, 7, {word: number for number, word in enumerate(DAYS)}),
)


@dataclass(frozen=True)
class Field:
    """What one field says: whether it begins with a star, and the values it means."""

    star: bool
    values: frozenset[int]


@dataclass(frozen=True)
class Cron:
    """A cron, read: its text, and its five fields."""

    text: str
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    @classmethod
    def of(cls, text: object) -> Cron:
        """Read a cron. Raises `DeclarationError` ``MAGIK_SCHEDULE_CRON_INVALID``, or ``MAGIK_SCHEDULE_NEVER`` for days
        that no month has.
        """
        words = text.split() if isinstance(text, str) else []
        fields = NICKNAMES.get(" ".join(words).lower(), " ".join(words)).split()
        if not "".join(words).isascii():
            raise _invalid(text, "not all of it is ASCII")  # a capital of some other letters is one of ours
        if len(fields) != len(FIELDS):
            raise _invalid(text, "a cron has five fields, or is a nickname such as @daily")
        read = [_field(text, kind, said.upper()) for kind, said in zip(FIELDS, fields, strict=True)]
        cron = cls(" ".join(words), *read)
        if not cron._has_days():
            raise DeclarationError("MAGIK_SCHEDULE_NEVER", f"cron={text!r}: no month has that day.", field="cron")
        return cron

    @property
    def elapses(self) -> bool:
        """Whether it counts time by minutes or hours that go by, and does not name times of the day."""
        return self.minute.star or self.hour.star

    @property
    def either_day(self) -> bool:
        """Whether a day may fit either field of days: so where neither begins with a star. Otherwise it fits both."""
        return not self.day.star and not self.weekday.star

    def following(self, local: datetime) -> datetime:
        """The first minute of the calendar after `local` that this cron means."""
        day = self._date_from(local.date())
        found = self._after(max(local.replace(second=0, microsecond=0), _midnight(day) - MINUTE))
        return found if found.date() == day else self._after(_midnight(self._date_from(day + DAY)) - MINUTE)

    def _date_from(self, first: date) -> date:
        """The first date that it means, from this one on."""
        found = first
        while not self._means(found):
            next_month = (found.replace(day=28) + 4 * DAY).replace(day=1)
            found = found + DAY if found.month in self.month.values else next_month
        return found

    def _means(self, each: date) -> bool:
        by_date, by_name = each.day in self.day.values, each.isoweekday() % 7 in self.weekday.values
        return each.month in self.month.values and (by_date or by_name if self.either_day else by_date and by_name)

    def _after(self, local: datetime) -> datetime:
        """The first of its times of the day after `local`, on any date."""
        from croniter import croniter  # slow to import, and only needed to walk

        times = f"{_listed(self.minute, 60)} {_listed(self.hour, 24)} * * *"
        found: datetime = croniter(times, local, ret_type=datetime).get_next()
        return found

    def _has_days(self) -> bool:
        """Whether some month that it names has a day that it names."""
        first = min(self.day.values)
        return self.either_day or any(first <= LONGEST_MONTHS[month - 1] for month in self.month.values)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day)  # noqa: DTZ001 - what a calendar shows has no zone


def _listed(field: Field, size: int) -> str:
    return "*" if len(field.values) == size else ",".join(map(str, sorted(field.values)))


def _field(text: object, kind: Kind, said: str) -> Field:
    if star := _STAR.fullmatch(said):
        high = 6 if kind.name == "day of week" else kind.high
        return Field(True, _stepped(text, kind, kind.low, high, star[1]))
    values: set[int] = set()
    for part in said.split(","):
        values |= _part(text, kind, part)
    return Field(False, frozenset(value % 7 if kind.name == "day of week" else value for value in values))


def _part(text: object, kind: Kind, part: str) -> frozenset[int]:
    if not (read := _PART.fullmatch(part)):
        raise _invalid(text, f"{kind.name}: {part!r} is not in the grammar")
    low = _number(text, kind, read[1])
    if read[2] is None:
        return frozenset({low})
    high = _number(text, kind, read[2])
    if high <= low:
        raise _invalid(text, f"{kind.name}: the range {part!r} does not rise")
    return _stepped(text, kind, low, high, read[3])


def _number(text: object, kind: Kind, said: str) -> int:
    number = kind.words.get(said, -1) if said.isalpha() else int(said)
    if not kind.low <= number <= kind.high:
        raise _invalid(text, f"{kind.name}: {said!r} is not from {kind.low} to {kind.high}")
    return number


def _stepped(text: object, kind: Kind, low: int, high: int, step: str | None) -> frozenset[int]:
    by = 1 if step is None else int(step)
    if not 1 <= by <= high - low:
        raise _invalid(text, f"{kind.name}: a step of {by} leads nowhere from {low} to {high}")
    return frozenset(range(low, high + 1, by))


def _invalid(text: object, why: str) -> DeclarationError:
    return DeclarationError("MAGIK_SCHEDULE_CRON_INVALID", f"cron={text!r}: {why}.", field="cron")
