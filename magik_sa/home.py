"""Where the tables live: the configured schema, or wherever the search_path leads."""

from __future__ import annotations

from .names import quoted
from .settings import schema


def prefix() -> str:
    """The configured schema and its dot, as SQL reads them, or nothing."""
    name = schema()
    return f"{quoted(name)}." if name else ""


def located(statement: str, **parts: str) -> str:
    """Fill ``{schema}`` and the other `parts` into a statement for `op.execute`, to whom a colon begins a parameter."""
    return statement.format(schema=prefix().replace(":", r"\:"), **parts)
