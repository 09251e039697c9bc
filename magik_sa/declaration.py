"""What a job class says about itself: its header, the options in its body, and its arguments.

Read once, when the class is made, so that a wrong word is an error at import and never a silent default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from .args import Argument
from .duration import duration
from .errors import DeclarationError, EnqueueError
from .retries import Retries
from .schedule import Schedule
from .storable import text

PRIORITIES: Final = range(-(2**15), 2**15)


@dataclass(frozen=True)
class Declaration:
    """Everything that a job class declares, checked."""

    name: str
    queue: str = "default"
    priority: int = 100
    policy: str | None = None
    retries: Retries = field(default_factory=Retries)
    idempotent_by: tuple[str, ...] | None = None  # with no name in it there is one key for the whole class
    discard_on: tuple[type[BaseException], ...] = ()
    keep: timedelta | None = None
    money: bool = False
    schedules: tuple[Schedule, ...] = ()
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    alone: bool = False  # its perform takes no Session

    @classmethod
    def of(cls, name: str, said: Mapping[str, Any], arguments: Mapping[str, Argument]) -> Declaration:
        """Check what a class and its parents say. Its stored name is `name` unless its header gives another."""
        read = {option: _READERS[option](value, option) for option, value in {"name": name, **said}.items()}
        return cls(schedules=read.pop("schedule", ()), **read, arguments=arguments)

    def check(self) -> None:
        """What can only be told of a class that has jobs: an abstract one may leave it to its children."""
        if self.money and not self.idempotent_by:
            what = f"{self.name} moves money and has no idempotent_by."
            raise DeclarationError("MAGIK_IDEMPOTENT_BY_REQUIRED", what, field="idempotent_by")
        for name in self.idempotent_by or ():
            if name not in self.arguments:
                what = f"{self.name} has no argument {name!r}."
                raise DeclarationError("MAGIK_IDEMPOTENT_BY_UNKNOWN", what, field="idempotent_by")


def whole(value: object, field: str) -> int:
    """A priority: a whole number that a smallint holds."""
    if not isinstance(value, int) or isinstance(value, bool) or value not in PRIORITIES:
        raise EnqueueError("MAGIK_ARGS_INVALID", f"{field}: has to be a whole number of 16 bits.", field=field)
    return value


def _of(kind: type, wanted: str) -> Callable[[object, str], Any]:
    def read(value: object, option: str) -> Any:
        if not isinstance(value, kind):
            raise _invalid(option, wanted)
        return value

    return read


def _enqueued(read: Callable[[object, str], Any]) -> Callable[[object, str], Any]:
    """What is checked for a job and for its class alike; wrong in the class it is a fault of the declaration."""

    def declared(value: object, option: str) -> Any:
        try:
            return read(value, option)
        except EnqueueError as error:
            raise _invalid(option, error.what.removeprefix(f"{option}: ")) from None

    return declared


def _keyed(value: object, option: str) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if (
        not isinstance(names, tuple)
        or not all(isinstance(name, str) for name in names)
        or len(set(names)) != len(names)
    ):
        raise _invalid(option, "one name of an argument, or a tuple of different names, () for one job of the class")
    return tuple(sorted(names))


def _exceptions(value: object, option: str) -> tuple[type[BaseException], ...]:
    kinds: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise _invalid(option, "write an exception class, or a tuple of them")
    return kinds


def _schedules(value: object, option: str) -> tuple[Schedule, ...]:
    schedules: tuple[Any, ...] = value if isinstance(value, tuple) else () if value is None else (value,)
    if not all(isinstance(schedule, Schedule) for schedule in schedules):
        raise _invalid(option, "write Schedule(every=…) or Schedule(cron=…, zone=…), or a tuple of them")
    names = [schedule.name for schedule in schedules]
    if len(set(names)) != len(names):
        raise _invalid(option, "give each of several schedules a name= of its own; one at most goes without")
    return schedules


def _kept(value: object, option: str) -> timedelta | None:
    return None if value is None else duration(value, field=option)


def _invalid(option: str, wanted: str) -> DeclarationError:
    return DeclarationError("MAGIK_OPTION_INVALID", f"{option}: {wanted.rstrip('.')}.", field=option)


_READERS: Final[dict[str, Callable[[object, str], Any]]] = {
    "policy": _enqueued(text),
    "queue": _enqueued(text),
    "priority": _enqueued(whole),
    "name": _enqueued(text),
    "retries": _of(Retries, "write Retries(times=…)"),
    "idempotent_by": _keyed,
    "discard_on": _exceptions,
    "keep": _kept,
    "money": _of(bool, "True or False"),
    "schedule": _schedules,
}
