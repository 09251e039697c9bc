"""How long the server takes for a claim, from pg_stat_statements: all statements that try a job's lock."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Final, Self

import psycopg

from .figures import Figures, Unsound
from .ground import Ground

# The walk is the only statement that tries locks on jobs one by one.
TAKEN: Final = """
SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(total_exec_time), 0)::float
  FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
 WHERE query LIKE '%pg_try_advisory_lock(uuid_hash_extended(id%' AND query LIKE '%LIMIT%'"""


class Claims:
    """Looks at the first tenth and at the last of so many seconds: ``with Claims(ground, 60) as claims: …``"""

    def __init__(self, ground: Ground, seconds: float) -> None:
        self._ground, self._seconds = ground, seconds  # its statements are counted
        self._over, self._seen = threading.Event(), list[tuple[int, float]]()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        """At 0, 0.1, 0.9 and 1 of the time."""
        with psycopg.connect(self._ground.dsn, autocommit=True) as connection:
            for pause in (0.0, 0.1, 0.8, 0.1):
                self._over.wait(pause * self._seconds)
                self._seen.append(taken(connection))

    def tenths(self) -> Figures:
        """Milliseconds a claim in both, and their ratio; nothing where the contender has no such statement."""
        first, last = (mean(*self._seen[at : at + 2]) for at in (0, 2))
        if first is None or last is None:
            return {}
        return {"first_claim": first, "last_claim": last, "claim": last / first}


def taken(connection: psycopg.Connection[Any]) -> tuple[int, float]:
    """Claims so far, and their milliseconds."""
    row = connection.execute(TAKEN.encode()).fetchone()
    assert row is not None
    return int(row[0]), float(row[1])


def mean(before: tuple[int, float], after: tuple[int, float]) -> float | None:
    """Of the claims between; None where there were none."""
    calls = after[0] - before[0]
    return (after[1] - before[1]) / calls if calls else None


def cost(ground: Ground, before: tuple[int, float]) -> float:
    """Milliseconds a claim since then. Raises `Unsound` where there was none."""
    found = mean(before, taken(ground.connection))
    if found is None:
        raise Unsound("nothing was claimed")
    return found
