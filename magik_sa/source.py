"""Where the jobs of a schedule come from: ``on_schedule`` can be called as it will be, or the job can be built."""

from __future__ import annotations

from inspect import getattr_static, isasyncgenfunction, iscoroutinefunction, signature
from typing import Any, Final

from .declaration import Declaration
from .errors import DeclarationError, EnqueueError
from .schedule import Schedule

REMEDY: Final = (
    "Write a @classmethod `def on_schedule(cls, session)`, with a parameter for each of the args, that yields jobs."
)


def check_source(cls: Any, job: Any) -> None:
    """Refuse a class whose ticks could make no job. Raises ``MAGIK_SCHEDULE_ARGS_INVALID``, or ``MAGIK_OPTION_INVALID``
    for an ``on_schedule`` that is none.
    """
    own = getattr_static(cls, "on_schedule")
    overridden = own is not getattr_static(job, "on_schedule")
    if overridden and (fault := _unfit(own)):
        what = f"{cls.__qualname__}.on_schedule {fault}."
        raise DeclarationError("MAGIK_OPTION_INVALID", what, field="on_schedule", remedy=REMEDY)
    for schedule in cls.__magik__.schedules:
        if overridden:
            _callable_with(cls, schedule)
        else:
            _buildable_with(cls.__magik__, schedule)


def _unfit(own: Any) -> str | None:
    """Why calling it on the class would give no jobs."""
    if not isinstance(own, classmethod):
        return "has to be a @classmethod"
    if iscoroutinefunction(own.__func__) or isasyncgenfunction(own.__func__):
        return "is async: nothing would be made of it"
    return None


def _callable_with(cls: Any, schedule: Schedule) -> None:
    try:
        signature(cls.on_schedule).bind("session", **schedule.args)
    except TypeError as error:
        takes = ", ".join(["session", *schedule.args])
        raise _invalid(cls.__magik__, schedule, f"on_schedule does not take ({takes}): {error}") from None


def _buildable_with(declaration: Declaration, schedule: Schedule) -> None:
    for name in schedule.args:
        if name not in declaration.arguments:
            raise _invalid(declaration, schedule, f"there is no argument {name!r}")
    for name, argument in declaration.arguments.items():
        if name in schedule.args:
            _taken(declaration, schedule, name)
        elif argument.required:
            raise _invalid(declaration, schedule, f"nothing says what {name!r} is")


def _taken(declaration: Declaration, schedule: Schedule, name: str) -> None:
    try:
        declaration.arguments[name].take(schedule.args[name])
    except EnqueueError as error:
        raise _invalid(declaration, schedule, error.what) from None


def _invalid(declaration: Declaration, schedule: Schedule, why: str) -> DeclarationError:
    what = f"The schedule {schedule.row(declaration.name)!r}: {why.rstrip('.')}."
    return DeclarationError("MAGIK_SCHEDULE_ARGS_INVALID", what, field="schedule")
