"""A database that could not be reached: why, in our words."""

from __future__ import annotations

from sqlalchemy import URL, exc

from .errors import BootError
from .failure import first_line, sqlstate
from .harmless import harmless
from .url import shown

FULL = ("too many clients", "too many connections", "remaining connection slots", "query_wait_timeout")  # a pooler's
PROTOCOL_VIOLATION = "08P01"  # PgBouncer's of a BEGIN, in statement mode
POOLING = "Give it a way through transaction or session pooling, or a direct one."


def unreached(url: URL, error: Exception) -> BootError:
    """What kept a connection from being made. libpq gives no code of an attempt that the server refused."""
    said = first_line(error)
    if any(words in said for words in FULL):
        fault = f"{shown(url)} has no connection left within max_connections and its other limits: {said}."
        return BootError("MAGIK_CONNECTION_BUDGET", fault, field="concurrency")
    if "permission denied for database" in said:
        fault = f"{url.render_as_string()}: {said}."
        connect = f'As the owner of the database: GRANT CONNECT ON DATABASE "{url.database}" TO "{url.username}";'
        return BootError("MAGIK_GRANT_MISSING", fault, field="database-url", remedy=harmless(connect))
    if sqlstate(error) == PROTOCOL_VIOLATION:
        fault = f"No transaction is possible by way of {url.render_as_string()}: {said}."
        return BootError("MAGIK_SESSION_INVALID", fault, field="database-url", remedy=POOLING)
    if isinstance(error, exc.TimeoutError):
        return BootError("MAGIK_POOL_SIZE_MISMATCH", f"The engine's pool is in use: {said}.", field="concurrency")
    fault = f"{shown(url)} cannot be reached: {said}."
    return BootError("MAGIK_DATABASE_UNREACHABLE", fault, field="database-url")
