"""Jobs as rows of text, and the one INSERT that takes a few thousand of them.

``INSERT … SELECT … FROM unnest(…)`` has one parameter for each column, whatever the number of rows: no limit on
parameters is met, and the statement is the same for every chunk. All of them are arrays of text, which every driver
sends alike; Postgres casts each value to its column's type. A value that all rows have travels once, and what holds no
line feed, ids and JSON, as the lines of one text: that costs a driver nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    Column,
    ColumnElement,
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

from .columns import delay_of
from .job import Job
from .sealed import Sealed, SealedText
from .storable import encoded
from .unreadable import Instant, ReadableJSONB

COLUMNS: Final = tuple(Job.__table__.columns)
AFTER: Final = "after"  # beside the columns: a delay, which is added to the database's now()
NAMES: Final = (*Job.__table__.columns.keys(), AFTER)

LINES: Final = ("id", "args")

Row = dict[str, str | None]
Parameters = dict[str, list[str | None] | str | None]


def row_of(job: Job) -> Row:
    """Every column of a job that was never in a Session, None where it has none. Raises where one is not JSON."""
    row: Row = dict.fromkeys(NAMES)
    for name, value in vars(job).items():
        if value is not None and (write := _WRITERS.get(name)) is not None:
            row[name] = write(value)
    if row["run_at"] is None and (delay := delay_of(vars(job).get("run_at"))) is not None:
        row[AFTER] = _interval(delay)
    return row


def open_moment(row: Row, job: Job) -> Any:
    """The SQL expression in `run_at` that only the server can tell the value of; None where there is none."""
    return vars(job).get("run_at") if row["run_at"] is None and row[AFTER] is None else None


def parameters(rows: Sequence[Row]) -> Parameters:
    """What `INSERT` takes for these rows, of which there is at least one.

    The array of a column in which all have the same is empty, as unnest fills the shorter ones up; that of the ids is
    never.
    """
    given: Parameters = {}
    for name in NAMES:
        values = [row[name] for row in rows]
        same = name != "id" and values.count(values[0]) == len(values)
        given |= _column(name, [] if same else values, values[0] if same else None)
    return given


def parameters_alike(row: Row, args: Sequence[str], ids: Sequence[str]) -> Parameters:
    """What `INSERT_ALIKE` takes for rows that are like this one but for their arguments and ids."""
    given: Parameters = {_same(name): row[name] for name in NAMES if name not in LINES}
    return {**given, _array("args"): _lines(args), _array("id"): _lines(ids)}


def _column(name: str, values: Sequence[str | None], same: str | None) -> Parameters:
    return {_array(name): _lines(values) if name in LINES else list(values), _same(name): same}


def _lines(values: Sequence[str | None]) -> str:
    text = "\n".join([value or "" for value in values])
    return SealedText(text) if any(type(value) is SealedText for value in values) else text


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
        case ReadableJSONB():
            return lambda value: _json(value, into.name)
        case LargeBinary():
            return lambda value: f"\\x{value.hex()}"
        case Instant():
            return _moment
        case Integer():
            return "{:d}".format
        case Uuid():
            return lambda value: value.hex
    return str.__str__  # of an enum's member that is text, its text


_WRITERS: Final = {each.name: _writer(each) for each in COLUMNS}


def _array(name: str) -> str:
    return f"all_{name}"


def _same(name: str) -> str:
    return f"same_{name}"


def _insert(into: postgresql.Insert, several: Collection[str]) -> Insert:
    """Of rows of which `several` columns come in arrays, the others being the same for all."""

    def array(name: str) -> ColumnElement[Any]:
        if name in LINES:
            return func.string_to_array(bindparam(_array(name), type_=Text), "\n", "", type_=ARRAY(Text))
        return bindparam(_array(name), type_=ARRAY(Text))

    arrays, columns = [array(name) for name in several], [column(name, Text) for name in several]
    given = func.unnest(*arrays).table_valued(*columns, name="given").render_derived()

    def text_of(name: str) -> ColumnElement[str]:
        same = bindparam(_same(name), type_=Text)
        if name not in several:
            return same
        return given.c[name] if several is LINES else func.coalesce(given.c[name], same)

    after = func.now() + cast(text_of(AFTER), Interval)

    def value(each: Column[Any]) -> ColumnElement[Any]:
        plain = cast(text_of(each.name), each.type)
        match each.name:
            case "run_at":
                return func.coalesce(plain, after, func.now())
            case "enqueued_at":
                return func.coalesce(plain, func.now())
        return plain

    rows = select(*map(value, COLUMNS)).select_from(given)
    return into.from_select([each.name for each in COLUMNS], rows).execution_options(preserve_rowcount=True)


# Passes over a live key, as any INSERT of jobs does, and over a job that was given twice.
INSERT: Final = _insert(postgresql.insert(Job.__table__).on_conflict_do_nothing(), NAMES)

# Of jobs of a class without a key, which have just been given their ids, none can be there: no look for conflicts, and
# two columns to take apart.
INSERT_ALIKE: Final = _insert(postgresql.insert(Job.__table__), LINES)
