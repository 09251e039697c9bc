"""The five fields of a cron: what they may say, and which minutes of the calendar they mean.

Everything is read here, by the grammar of docs/schedules.md, and what it does not define is refused. The walk over the
calendar is croniter's; it only ever sees plain lists of numbers, so that no reading of its own can come in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from .errors import DeclarationError

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
        from croniter import croniter  # slow to import, and only needed to walk

        start = local.replace(second=0, microsecond=0)
        found: datetime = croniter(self._plain(), start, ret_type=datetime, day_or=self.either_day).get_next()
        return found

    def _plain(self) -> str:
        """The fields as lists of numbers, a star for all; a field of days that lets in every day leaves no other."""
        day, weekday = _listed(self.day, 31), _listed(self.weekday, 7)
        if self.either_day and "*" in (day, weekday):
            day = weekday = "*"
        return f"{_listed(self.minute, 60)} {_listed(self.hour, 24)} {day} {_listed(self.month, 12)} {weekday}"

    def _has_days(self) -> bool:
        """Whether some month that it names has a day that it names."""
        first = min(self.day.values)
        return self.either_day or any(first <= LONGEST_MONTHS[month - 1] for month in self.month.values)


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
