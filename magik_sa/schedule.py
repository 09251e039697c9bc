"""When a job class makes jobs by itself: ``schedule = Schedule(every="10m")``, or a cron in a time zone.

A schedule is a pure function from one tick to the next. Who claims a tick, and that there is one job for it, is not
known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final

from .cron import Cron
from .duration import duration, text
from .errors import DeclarationError, EnqueueError
from .named import named_in
from .storable import invalid
from .storable import text as storable
from .walk import following
from .zone import zone

SHORTEST: Final = timedelta(seconds=1)


@named_in
@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Either `every` so often, or by a `cron` in a `zone`. `name` tells several schedules of one class apart.

    `args` is what ``on_schedule`` is called with beside the Session; unless it is overridden these are arguments of
    the job that it yields. Raises `DeclarationError` naming the field that is wrong, when it is made.
    """

    every: str | timedelta | None = None
    cron: str | None = None
    zone: str | None = None
    name: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)  # never shown: may hold secrets
    _cron: Cron | None = field(default=None, init=False, repr=False, compare=False)
    _zone: tzinfo = field(default=UTC, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (self.every is None) == (self.cron is None):
            raise _invalid("every", "a schedule has either that or cron=, one of the two")
        if self.every is None:
            self._set(_cron=Cron.of(self.cron), _zone=_zone(self))
        elif self.zone is not None:
            raise _invalid("zone", "an interval is the same in every zone; only a cron has one")
        else:
            self._set(every=_interval(self.every))
        self._set(name=_name(self.name), args=_args(self.args))
        self.first(datetime.now(UTC))  # there is one

    def first(self, now: datetime) -> datetime:
        """The first tick of a schedule that is declared `now`: strictly later, in UTC."""
        return self.next(now, now)

    def next(self, tick: datetime, now: datetime) -> datetime:
        """The tick after `tick` that is strictly later than `now`, in UTC; those between the two are left out."""
        tick, now = _instant("tick", tick), _instant("now", now)
        if self._cron is not None:
            return following(self._cron, self._zone, max(tick, now))
        assert isinstance(self.every, timedelta)
        missed = max((now - tick) // self.every, 0)
        return tick + self.every * (missed + 1)

    def declaration(self) -> dict[str, Any]:
        """What is stored of it, as JSON: ``{"every": "10m"}``, or ``{"cron": "0 3 * * *", "zone": "Europe/Paris"}``."""
        if self._cron is not None:
            return {"cron": self._cron.text, "zone": self.zone}
        assert isinstance(self.every, timedelta)
        return {"every": text(self.every)}

    def row(self, job_class: str) -> str:
        """The name of its row, in the schedules of a class of this stored name."""
        return job_class if self.name is None else f"{job_class}:{self.name}"

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)


def _zone(schedule: Schedule) -> tzinfo:
    if schedule.zone is None or schedule.zone == "":
        what = f"cron={schedule.cron!r} has no zone."
        raise DeclarationError("MAGIK_SCHEDULE_ZONE_MISSING", what, field="zone")
    return zone(schedule.zone)


def _interval(value: object) -> timedelta:
    span = duration(value, field="every")
    if span % SHORTEST:
        what = f"every={value!r}: an interval is a whole number of seconds."
        raise DeclarationError("MAGIK_DURATION_INVALID", what, field="every")
    return span


def _name(value: object) -> str | None:
    try:
        return None if value is None else storable(value, "name")
    except EnqueueError as error:
        raise _invalid("name", error.what.removeprefix("name: ")) from None


def _args(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _invalid("args", "a mapping from the names of arguments to their values")
    return dict(value)


def _instant(name: str, value: datetime) -> datetime:
    if value.tzinfo is None:
        raise invalid(name, "is a naive datetime; give it a time zone")
    return value.astimezone(UTC)


def _invalid(name: str, why: str) -> DeclarationError:
    return DeclarationError("MAGIK_SCHEDULE_INVALID", f"Schedule({name}=…): {why.rstrip('.')}.", field=name)
