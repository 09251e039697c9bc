"""An argument on the class side: a typed SQL expression, for where, order_by and the columns of a SELECT."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, TypeDecorator, case, cast, func, inspect, literal, text
from sqlalchemy.dialects.postgresql import JSONB

from .args import Argument
from .kind import scalar_of


class StoredValue(TypeDecorator[Any]):
    """JSONB that takes and gives what the argument's type does: a list, a set, an enum, a model."""

    impl = JSONB
    cache_ok = True

    def __init__(self, argument: Argument) -> None:
        super().__init__(none_as_null=True)
        self.argument = argument

    def process_bind_param(self, value: Any, dialect: Any) -> Any:  # noqa: ARG002
        return None if value is None else self.argument.dump(value)

    def process_result_value(self, value: Any, dialect: Any) -> Any:  # noqa: ARG002
        return None if value is None else self.argument.read(value)


def expression(owner: Any, argument: Argument) -> ColumnElement[Any]:
    """``CASE WHEN job_class = 'X' THEN (args ->> 'name')::type END``.

    The guard keeps the rows of other classes from the cast. A row that lacks the argument reads as its default.
    """
    cls: Any = owner if isinstance(owner, type) else inspect(owner).mapper.class_
    names = sorted(cls.stored_names())
    ours = owner.job_class == names[0] if len(names) == 1 else owner.job_class.in_(names)
    stored = _stored(owner, argument)
    if argument.required or (default := argument.default()) is None:
        return case((ours, stored))
    here = owner.args.has_key(argument.name)
    return case((ours & here, stored), (ours, cast(literal(default, stored.type), stored.type)))


def _stored(owner: Any, argument: Argument) -> ColumnElement[Any]:
    element = owner.args[argument.name]
    if (kind := scalar_of(argument.annotation)) is not None:
        return cast(element.astext, kind)
    return cast(func.nullif(element, text("'null'::jsonb")), StoredValue(argument))
