"""The connections with which peers' jobs do their own work."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import psycopg_pool


def own_pool(dsn: str, concurrency: int) -> Any:
    """One connection a job at most, each statement a commit; to be opened with ``async with``."""
    kwargs = {"autocommit": True}
    return psycopg_pool.AsyncConnectionPool(dsn, min_size=1, max_size=concurrency, kwargs=kwargs, open=False)
