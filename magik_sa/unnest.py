"""Jobs as rows of text, and the one INSERT that takes a few thousand of them.

``INSERT … SELECT … FROM unnest(…)`` has one parameter for each column, whatever the number of rows: no limit on
parameters is met, and the statement is the same for every chunk. All of them are arrays of text, which every driver
sends alike; Postgres casts each value to its column's type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    Column,
    ColumnElement,
    DateTime,
    Insert,
    Integer,
    Interval,
    LargeBinary,
    Text,
    Uuid,
    bindparam,
    cast,
    column,
    func,
    select,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import JSONB

from .columns import delay_of
from .job import Job
from .sealed import SealableJSONB, Sealed, SealedText
from .storable import encoded

COLUMNS: Final = tuple(Job.__table__.columns)
AFTER: Final = "after"  # beside the columns: a delay, which is added to the database's now()
NAMES: Final = (*Job.__table__.columns.keys(), AFTER)

Row = dict[str, str | None]


def row_of(job: Job) -> Row:
    """Every column of a job that was never in a Session, None where it has none. Raises where one is not JSON."""
    own = vars(job)
    row = {name: None if own.get(name) is None else write(own[name]) for name, write in _WRITERS.items()}
    delay = delay_of(own.get("run_at"))
    return {**row, AFTER: None if delay is None else _interval(delay)}


def open_moment(row: Row, job: Job) -> Any:
    """The SQL expression in `run_at` that only the server can tell the value of; None where there is none."""
    return vars(job).get("run_at") if row["run_at"] is None and row[AFTER] is None else None


def parameters(rows: Sequence[Row]) -> dict[str, list[str | None]]:
    """What `INSERT` takes for these rows. An array without values may be empty: unnest fills the shorter ones up."""
    columns = {name: [row[name] for row in rows] for name in NAMES}
    return {
        _parameter(name): values if any(value is not None for value in values) else []
        for name, values in columns.items()
    }


def instant(moment: datetime) -> str:
    """A time that reads the same in every zone."""
    return moment.astimezone(UTC).isoformat()


def _moment(moment: Any) -> str | None:
    return instant(moment) if isinstance(moment, datetime) else None


def _interval(delay: timedelta) -> str:
    """Days apart from seconds, as the drivers do: a day in a zone may have 23 hours. Each with its sign, as one alone
    would count for what follows under IntervalStyle sql_standard.
    """
    return f"{delay.days:+d} days {delay.seconds:+d} seconds {delay.microseconds:+d} microseconds"


def _json(value: Any, field: str) -> str:
    coded = encoded(value, field).decode()
    return SealedText(coded) if isinstance(value, Sealed) else coded


def _writer(into: Column[Any]) -> Callable[[Any], str | None]:
    """How a value of this column is written."""
    match into.type:
        case JSONB() | SealableJSONB():
            return lambda value: _json(value, into.name)
        case LargeBinary():
            return lambda value: f"\\x{value.hex()}"
        case DateTime():
            return _moment
        case Integer():
            return "{:d}".format
        case Uuid():
            return str
    return str.__str__  # of an enum's member that is text, its text


_WRITERS: Final = {each.name: _writer(each) for each in COLUMNS}


def _parameter(name: str) -> str:
    return f"all_{name}"


def _insert() -> Insert:
    """Passes over a live key, as any INSERT of jobs does, and over a job that was given twice."""
    arrays = [bindparam(_parameter(name), type_=ARRAY(Text)) for name in NAMES]
    given = func.unnest(*arrays).table_valued(*(column(name, Text) for name in NAMES), name="given").render_derived()
    after = func.now() + cast(given.c[AFTER], Interval)

    def value(each: Column[Any]) -> ColumnElement[Any]:
        plain = cast(given.c[each.name], each.type)
        match each.name:
            case "run_at":
                return func.coalesce(plain, after, func.now())
            case "enqueued_at":
                return func.coalesce(plain, func.now())
        return plain

    passing_over = postgresql.insert(Job.__table__).on_conflict_do_nothing()
    return passing_over.from_select([each.name for each in COLUMNS], select(*map(value, COLUMNS)))


INSERT: Final = _insert().execution_options(preserve_rowcount=True)
