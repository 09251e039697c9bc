"""Due rows of classes that nobody declared here: never touched, only told of."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import psycopg

from ..names import Names

UNSERVED = """
SELECT DISTINCT job_class FROM (
  SELECT job_class FROM {jobs}
   WHERE queue = ANY(%(queues)s) AND finished_at IS NULL AND expired_at IS NULL AND run_at <= now()
     AND job_class <> ALL(%(known)s) LIMIT 1000) j"""


def unserved(
    connection: psycopg.Connection[Any], names: Names, queues: Collection[str], known: Collection[str]
) -> list[str]:
    """Classes with due jobs in these queues that this process does not know."""
    values = {"queues": list(queues), "known": list(known)}
    return sorted(row[0] for row in connection.execute(names.sql(UNSERVED), values, prepare=True))
