"""A value and its JSON: which values are their own, and whether one has come back as it was."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

LARGEST_INTEGER: Final = 2**63 - 1
SMALLEST_INTEGER: Final = -(2**63)


def itself(annotation: Any) -> type | None:
    """The type whose values are their own JSON, with nothing to check but what `plain` looks at; None for any other."""
    return next((each for each in (int, str, bool) if annotation is each), None)


def plain(value: object) -> bytes:
    """The JSON of a number, a truth value or a text, where nothing stands against it; empty where that has to be seen.

    Most values are such, and pydantic, the encoder and the way back take ten times as long to say so.
    """
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int):
        return str(value).encode() if SMALLEST_INTEGER <= value <= LARGEST_INTEGER else b""
    if isinstance(value, str) and value.isascii() and value.isprintable() and not ('"' in value or "\\" in value):
        return f'"{value}"'.encode()
    return b""


def same(back: Any, given: Any) -> bool:
    """Whether a value came back. JSON keeps the offset of a time and not its zone, and in an hour that a zone skips or
    repeats Python holds no time equal to any of another zone: so clock and offset are compared.
    """
    if isinstance(given, dict):
        return isinstance(back, dict) and back.keys() == given.keys() and all(same(back[k], given[k]) for k in given)
    if isinstance(given, list | tuple):
        return type(back) is type(given) and len(back) == len(given) and all(map(same, back, given))
    if isinstance(given, datetime) and isinstance(back, datetime):
        return _clock(back) == _clock(given)
    return bool(back == given)


def _clock(moment: datetime) -> tuple[datetime, timedelta | None]:
    return moment.replace(tzinfo=None), moment.utcoffset()
