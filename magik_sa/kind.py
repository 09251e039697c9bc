"""Which SQL type an argument has on the class side, told from its annotation."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NewType, Union, get_args, get_origin
from uuid import UUID

from sqlalchemy import BigInteger, Boolean, Date, DateTime, Double, Numeric, Text, Uuid
from sqlalchemy.types import TypeEngine

_SCALARS: Final[dict[type, TypeEngine[Any]]] = {
    str: Text(),
    bool: Boolean(),
    int: BigInteger(),
    float: Double(),
    Decimal: Numeric(),
    UUID: Uuid(),
    datetime: DateTime(timezone=True),
    date: Date(),
}


def scalar_of(annotation: Any) -> TypeEngine[Any] | None:
    """The type that ``args ->> 'name'`` is cast to; None where the value compares as JSONB."""
    plain = _plain(annotation)
    return _SCALARS.get(plain) if isinstance(plain, type) else None


def _plain(annotation: Any) -> Any:
    """The type under Annotated, Optional, NewType, Literal and ``type X = ...``."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _plain(inner[0])
    if origin is Literal:
        return _only({type(value) for value in inner} - {NoneType})
    if origin in (Union, UnionType):
        return _only({_plain(item) for item in inner} - {NoneType})
    if isinstance(annotation, NewType):
        return _plain(annotation.__supertype__)
    if type(annotation).__name__ == "TypeAliasType":
        return _plain(annotation.__value__)
    return annotation


def _only(kinds: set[Any]) -> Any:
    return kinds.pop() if len(kinds) == 1 else None
