"""Schedules by hand: paused, resumed, and fired once at once, with the caller's commit."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from .errors import DeclarationError, EnqueueError
from .harmless import word
from .meant import near
from .schedule import Schedule
from .storable import text as storable
from .timetable import moment, sql
from .unreadable import loaded
from .writing import written_by

LONGEST_NAME: Final = 511  # bytes: a class's name, ":" and a schedule's own

PAUSE: Final = """
UPDATE {schedules} SET paused_at = now(), paused_by = :by WHERE name = :name AND paused_at IS NULL"""

PAUSED: Final = """
SELECT CAST(extract(epoch FROM next_run_at) AS text) AS at, CAST(extract(epoch FROM now()) AS text) AS now,
       next_run_at <= now() AS due, CAST(declaration AS text) AS declaration
  FROM {schedules} WHERE name = :name AND paused_at IS NOT NULL FOR UPDATE"""

RESUME: Final = """
UPDATE {schedules} SET paused_at = NULL, paused_by = NULL, next_run_at = coalesce(:next, next_run_at),
       tried_at = NULL, deaths = 0, rests_until = NULL
 WHERE name = :name"""

RUN: Final = """
UPDATE {schedules} SET next_run_at = now() WHERE name = :name AND paused_at IS NULL AND next_run_at > now()"""

IS_PAUSED: Final = "SELECT paused_at IS NOT NULL FROM {schedules} WHERE name = :name"

NAMES: Final = "SELECT name FROM {schedules} ORDER BY name"


def pause(connection: Connection | Session | scoped_session[Session], name: str, by: str) -> bool:
    """Let no tick of this schedule fire from the caller's commit on. False where it is paused already.

    `by` is who wants it so, text of 1 to 255 bytes. Raises `EnqueueError` ``MAGIK_SCHEDULE_UNKNOWN`` for a name that no
    schedule has, and ``MAGIK_ARGS_INVALID`` for what is no text.
    """
    own, told = written_by(connection), {"name": storable(name, "name", LONGEST_NAME), "by": storable(by, "by")}
    return _one(own.execute(sql(PAUSE), told)) or _known(own, name)


def resume(connection: Connection | Session | scoped_session[Session], name: str) -> bool:
    """Let its ticks fire again from the caller's commit on. False where it is not paused. Raises as `pause` does.

    What came due before now was left out on purpose and is not made up for: the next tick is the first after now.
    """
    own = written_by(connection)
    row = own.execute(sql(PAUSED), {"name": storable(name, "name", LONGEST_NAME)}).one_or_none()
    if row is None:
        return _known(own, name)
    return _one(own.execute(sql(RESUME), {"name": name, "next": _left_out(row)}))


def run_now(connection: Connection | Session | scoped_session[Session], name: str) -> bool:
    """Make its next tick due at the caller's commit: a worker fires it within about a second, once. False where it is.

    The tick is moved, not added: those that follow are `every` apart from it, or as the cron has them. Raises
    `EnqueueError` ``MAGIK_SCHEDULE_PAUSED`` where it is paused, and as `pause` does.
    """
    own, told = written_by(connection), {"name": storable(name, "name", LONGEST_NAME)}
    if _one(own.execute(sql(RUN), told)):
        return True
    if own.execute(sql(IS_PAUSED), told).scalar():
        remedy = f"Resume it first: magik schedules resume {word(name)}"
        raise EnqueueError("MAGIK_SCHEDULE_PAUSED", f"The schedule {name!r} is paused.", field="name", remedy=remedy)
    return _known(own, name)


def _left_out(row: Any) -> datetime | None:
    """The first tick after now; None where none came due, or where the row by hand says nothing that could be."""
    if not row.due:
        return None
    try:
        return Schedule(**loaded(row.declaration)).next(moment(row.at), moment(row.now))
    except (TypeError, DeclarationError):
        return None


def _known(connection: Connection, name: str) -> Literal[False]:
    """There is one of this name, with which there was nothing to do."""
    names = list(connection.execute(sql(NAMES)).scalars())
    if name in names:
        return False
    raise EnqueueError("MAGIK_SCHEDULE_UNKNOWN", f"There is no schedule {name!r}{near(name, names)}", field="name")


def _one(result: Any) -> bool:
    return bool(result.rowcount == 1)
