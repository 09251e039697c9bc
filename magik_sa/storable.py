"""What Postgres can hold as JSON, told before any SQL is sent: no NUL, no lone surrogate, no NaN, not too large."""

from __future__ import annotations

import json
import os
from typing import Any, Final

from .errors import EnqueueError

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
MAX_ARGS_BYTES: Final = int(os.environ.get("MAGIK_MAX_ARGS_BYTES") or 256 * 1024)


def invalid(field: str, why: str) -> EnqueueError:
    """The error for the argument or option `field`. `why` never quotes a value: it may be a secret."""
    return EnqueueError("MAGIK_ARGS_INVALID", f"{field}: {why}{'' if why.endswith('?') else '.'}", field=field)


def encoded(value: Any, field: str) -> bytes:
    """A JSON value as the bytes that travel. Raises ``MAGIK_ARGS_INVALID`` naming `field` for what cannot be stored."""
    try:
        text = int.__repr__(value) if type(value) is int else _ENCODER.encode(value)
        coded = text.encode()
    except UnicodeEncodeError:
        why = "holds a lone surrogate, which is no character"
    except RecursionError:
        why = "is nested too deeply"
    except (TypeError, ValueError):
        why = "is not JSON (NaN and Infinity are not, nor keys of mixed types)"
    else:
        if r"\u0000" not in text or not _has_nul(value):
            return coded
        why = "holds a NUL character, which Postgres cannot store"
    raise invalid(field, why)


def fitting(sizes: dict[str, int]) -> None:
    """Refuse arguments that are too large together, naming the largest."""
    total = sum(size + len(name.encode()) + 4 for name, size in sizes.items())
    if total > MAX_ARGS_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise invalid(
            largest, f"the arguments make {total} bytes of JSON together, at most {MAX_ARGS_BYTES} are allowed"
        )


def text(value: object, field: str, most: int = 255) -> str:
    """A name as Postgres can hold it: 1 to `most` bytes of UTF-8, no NUL."""
    if not isinstance(value, str):
        raise invalid(field, "is not text")
    encoded(value, field)
    if not 1 <= len(value.encode()) <= most:
        raise invalid(field, f"has to have 1 to {most} bytes")
    return value


def _has_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_nul(key) or _has_nul(item) for key, item in value.items())
    if isinstance(value, list):
        return any(map(_has_nul, value))
    return isinstance(value, str) and "\0" in value
