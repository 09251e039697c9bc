"""What may stand in the columns that the application writes beside the arguments: when, and with what context."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BinaryExpression, BindParameter, func
from sqlalchemy.sql import operators
from sqlalchemy.sql.functions import now
from sqlalchemy.sql.operators import ColumnOperators

from .carried import carried
from .duration import advice, duration
from .errors import DeclarationError, EnqueueError
from .storable import MAX_ARGS_BYTES, encoded, invalid
from .unreadable import EARLIEST, LATEST


def due(run_at: Any, delay: str | timedelta | None) -> Any:
    """When the job may start: what is given, or the database's now() and the delay; None says nothing."""
    if delay is None:
        return run_at
    if run_at is not None:
        raise invalid("delay", "says when, and so does run_at: give one of them")
    try:
        return func.now() + duration(delay, field="delay", zero=True)
    except DeclarationError as error:
        raise EnqueueError("MAGIK_ARGS_INVALID", f"delay={delay!r}: {advice(error)}.", field="delay") from None


def delay_of(moment: object) -> timedelta | None:
    """The delay in ``now() + delay``, as `due` writes it, or zero in ``now()``; None in any other expression."""
    match moment:
        case now():
            return timedelta(0)
        case BinaryExpression(left=now(), operator=operators.add, right=BindParameter(value=timedelta() as delay)):
            return delay
    return None


def aware(value: object, field: str) -> Any:
    """An instant: a datetime with a time zone, or an SQL expression."""
    if isinstance(value, ColumnOperators) or hasattr(value, "__clause_element__"):
        return value
    if not isinstance(value, datetime):
        raise invalid(field, "is neither a datetime with a time zone nor an SQL expression")
    if value.utcoffset() is None:
        raise invalid(field, "is a naive datetime; give it a time zone")
    if not EARLIEST <= value <= LATEST:
        raise invalid(field, "lies outside the years that can be read back in every time zone")
    return value


def carried_context() -> dict[str, Any] | None:
    """The context of the caller, which has to be plain JSON."""
    context = carried()
    if context is not None:
        coded = encoded(context, "context")
        if len(coded) > MAX_ARGS_BYTES:
            raise invalid("context", f"makes {len(coded)} bytes of JSON, at most {MAX_ARGS_BYTES} are allowed")
        if json.loads(coded) != context:
            raise invalid("context", "does not come back from JSON as the same value")
    return context
