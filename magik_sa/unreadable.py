"""Columns of which SQL can write what Python cannot hold: a row by hand comes through, and so do those beside it.

A time before the year 1 or after 9999 (``run_at = 'infinity'``, to park a job), a number of 5,000 digits, a list in a
list ten thousand times. The driver's error of one such row would be that of every SELECT that meets it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

from pydantic_core import from_json
from sqlalchemy import ColumnElement, DateTime, Text, TypeDecorator, UnaryExpression, cast, type_coerce
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.operators import OperatorType
from sqlalchemy.types import TypeEngine

from .failure import headline

# Postgres holds more than a datetime can, and shows it in the zone of the connection: a day is left at either end.
EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)

# The same in SQL. NULL stays NULL.
NEAREST: Final = """CASE WHEN {0} < timestamptz '0001-01-02 00:00+00' THEN timestamptz '0001-01-02 00:00+00'
 WHEN {0} > timestamptz '9999-12-30 00:00+00' THEN timestamptz '9999-12-30 00:00+00' ELSE {0} END"""


class Unreadable(dict[str, Any]):
    """Stands for JSON that Python cannot hold; `why` becomes the failure of the job that has it."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why


def loaded(data: str | bytes) -> Any:
    """JSON, or an `Unreadable`."""
    try:
        return from_json(data)  # ten times as fast as what follows; but it takes nothing that is nested deeply
    except ValueError:
        return _loaded_anyhow(data)


def _loaded_anyhow(data: str | bytes) -> Any:
    try:
        return json.loads(data if isinstance(data, str) else data.decode())
    except (ValueError, RecursionError) as error:
        return Unreadable(headline(error))


class Instant(TypeDecorator[datetime]):
    """A time, read as near to what the row says as a `datetime` can come."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def coerce_compared_value(self, op: OperatorType | None, value: Any) -> TypeEngine[Any]:
        """``run_at + timedelta(…)``: DateTime itself knows what it may be combined with."""
        return self.impl_instance.coerce_compared_value(op, value)

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """How it is selected, by every driver."""
        return Nearest(column, operator=operators.custom_op("nearest"), type_=self)


class Nearest(UnaryExpression[datetime]):
    """A column of times among those of a SELECT, held between the first and the last that a `datetime` can be.

    With DISTINCT it is the column itself: what such a SELECT is ordered by has to stand among its columns.
    """

    inherit_cache = True


@compiles(Nearest)
def _held(element: Nearest, compiler: SQLCompiler, **kw: Any) -> str:
    column = compiler.process(element.element, **kw)
    distinct = any(getattr(entry["selectable"], "_distinct", False) for entry in compiler.stack[-1:])
    return column if distinct else NEAREST.format(column)


class ReadableJSONB(TypeDecorator[Any]):
    """JSONB that is read as text, here and not in the driver."""

    impl = JSONB
    cache_ok = True

    def coerce_compared_value(self, op: OperatorType | None, value: Any) -> TypeEngine[Any]:
        """``args.has_key("name")`` takes text: JSONB itself knows what its operators take."""
        return self.impl_instance.coerce_compared_value(op, value)

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """How it is selected; `process_result_value` takes it from there."""
        return type_coerce(cast(column, Text), self)

    def process_result_value(self, value: Any, dialect: Any) -> Any:  # noqa: ARG002
        """Text, unless it comes out of something that does not select its columns so."""
        return loaded(value) if isinstance(value, str | bytes) else value
