"""Rows of jobs as somebody beside the workers puts them there and counts them."""

from __future__ import annotations

from typing import Any

import psycopg

DAY, WEEK = "KeptADay", "KeptAWeek"  # classes of tests/jobs/kept.py


def fill(app: psycopg.Connection[Any], count: int, cls: str, age: str = "2 days", what: str = "finished_at") -> None:
    """Add `count` rows of this class that finished, or otherwise `what`, so long ago."""
    app.execute(
        f"""
        INSERT INTO magik_jobs (job_class, {what})
        SELECT '{cls}', now() - interval '{age}' - i * interval '1 ms' FROM generate_series(1, {count}) i""".encode()
    )


def rows(app: psycopg.Connection[Any], where: str = "true") -> int:
    """How many rows of jobs there are."""
    return int(one(app, f"SELECT count(*) FROM magik_jobs WHERE {where}"))


def one(app: psycopg.Connection[Any], query: str) -> Any:
    """The one value that this asks for."""
    row = app.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]
