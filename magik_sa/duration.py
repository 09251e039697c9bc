"""Durations as people write them: "250ms", "30s", "10m", "1h30m", "7d".

Text at the surface, `timedelta` inside. A bare number is refused, because nobody remembers its unit.
"""

from __future__ import annotations

import re
from datetime import timedelta

from .errors import DeclarationError

UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
LONGEST = timedelta(days=3650)
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d|w)", re.ASCII)


def duration(value: object, *, field: str = "duration", zero: bool = False) -> timedelta:
    """Read a duration such as ``"1h30m"``; a `timedelta` passes through.

    Between zero (only with ``zero=True``) and ten years. Raises `DeclarationError`
    ``MAGIK_DURATION_INVALID`` naming `field` for anything else, bare numbers included.
    """
    span = value if isinstance(value, timedelta) else _read(value, field)
    if span < timedelta(0) or (span == timedelta(0) and not zero) or span > LONGEST:
        raise _invalid(value, field, "out of range")
    return span


def _read(value: object, field: str) -> timedelta:
    text = value.strip() if isinstance(value, str) else ""
    if not text or _PART.sub("", text):
        raise _invalid(value, field, "not a duration")
    parts = [(float(number), unit) for number, unit in _PART.findall(text)]
    order = [list(UNITS).index(unit) for _, unit in parts]
    if order != sorted(set(order), reverse=True):
        raise _invalid(value, field, "units must fall and not repeat")
    try:
        return sum((number * UNITS[unit] for number, unit in parts), timedelta(0))
    except OverflowError:
        raise _invalid(value, field, "out of range") from None


def _invalid(value: object, field: str, why: str) -> DeclarationError:
    return DeclarationError("MAGIK_DURATION_INVALID", f"{field}={value!r}: {why}.", field=field)


def fault(error: DeclarationError) -> str:
    """What `duration` has found, without field and value: for a message that names these itself."""
    return error.what.rpartition(": ")[2].rstrip(".")


def advice(error: DeclarationError) -> str:
    """The same, and how durations are written."""
    return f"{fault(error)} ({error.remedy.rstrip('.')})"


def text(span: timedelta) -> str:
    """Write a duration the way `duration` reads it: ``timedelta(seconds=90)`` is ``"1m30s"``."""
    left, parts = span, []
    for unit, size in sorted(UNITS.items(), key=lambda item: item[1], reverse=True):
        if unit != "w" and (number := left // size):
            parts.append(f"{number}{unit}")
            left -= number * size
    return "".join(parts) or "0s"
