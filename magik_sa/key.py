"""The key of a job: what `idempotent_by` names, as 32 bytes.

Two values are the same key where they are equal as values of the argument's type: ``Decimal("1.0")`` and
``Decimal("1.00")``, one instant told in two zones. ``1`` and ``"1"``, or two orders of a list, are different keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

from .args import Argument
from .storable import encoded

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def digest(arguments: Iterable[Argument], values: Mapping[str, Any]) -> bytes:
    """The sha256 of the canonical JSON ``{"name": value, …}`` of these arguments."""
    return sha256(
        encoded({argument.name: _canonical(argument, values[argument.name]) for argument in arguments}, "key")
    ).digest()


def _canonical(argument: Argument, value: Any) -> Any:
    match value:
        case Decimal():
            return _canonical_number(value)
        case datetime():
            return f"@{(value - _EPOCH) // timedelta(microseconds=1)}"
        case float():
            return value + 0.0  # of -0.0, 0.0
        case _:
            return argument.dump(value)


def _canonical_number(value: Decimal) -> str:
    """Digits and exponent without trailing zeros; `Decimal.normalize` would round to the precision of the context."""
    sign, digits, exponent = value.as_tuple()
    significant = "".join(map(str, digits)).rstrip("0")
    if not significant.strip("0"):
        return "0"
    assert isinstance(exponent, int)
    return f"{'-' * sign}{significant}E{exponent + len(digits) - len(significant)}"
