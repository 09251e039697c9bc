"""How many jobs of each queue have ended here in the last minute, and that it is said now and then: for people."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import psycopg

from ..claim import Owner
from ..names import Names
from ..outcome import Outcome
from .letters import Ended

TOLD_EVERY: Final = 15.0  # seconds between two times at which it is said, at least
WINDOW: Final = 60.0  # seconds for which what has ended counts
OVER: Final = frozenset({Outcome.FINISHED, Outcome.EXPIRED})  # after the others the job is still there

# Times by the database's clock, from what this process knows: how long ago. In a transaction of its own behind a lock
# that is not waited for: a figure for people keeps no claim waiting behind an ALTER TABLE.
LOCK: Final = "LOCK TABLE {workers} IN ROW EXCLUSIVE MODE NOWAIT"
TELL: Final = """
UPDATE {workers}
   SET ended = %(ended)s::integer[],
       ended_at = ARRAY(SELECT clock_timestamp() - make_interval(secs => ago)
                          FROM unnest(%(ago)s::float8[]) WITH ORDINALITY a (ago, nth) ORDER BY nth)
 WHERE backend_pid = %(pid)s AND backend_start = %(start)s"""


DRAINING: Final = "UPDATE {workers} SET draining = true WHERE backend_pid = %(pid)s AND backend_start = %(start)s"


class Tally:
    """Counts, and remembers for a minute what was counted between two times at which it was said.

    Nothing is to be said while nothing ends: who reads it leaves out what is older than a minute.
    """

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = queues
        self._new = Counter[str]()
        self._told: deque[tuple[float, Counter[str]]] = deque()  # until when, the latest first
        self._next = 0.0
        self._owed = False

    def note(self, letter: Ended) -> None:
        """A run is over. It counts if its job is, too."""
        if letter.outcome in OVER:
            self._new[letter.job.row["queue"]] += 1
            self._owed = True

    def unsaid(self) -> None:
        """It could not be said: it is to be the next time."""
        self._owed = self._owed or bool(self._told)

    def forgotten(self) -> None:
        """What was said is not there any more, the row is a new one: it is to be said at once."""
        self.unsaid()
        self._next = 0.0

    def seconds(self, now: float) -> float | None:
        """Until it is to be said; None where there is nothing new."""
        return max(0.0, self._next - now) if self._owed else None

    def telling(self, now: float) -> Iterator[tuple[float, list[int]]]:
        """What is to be said now: seconds ago, and how many of each queue ended until then, since the time before."""
        self._next, self._owed = now + TOLD_EVERY, False
        if self._new:
            self._told.appendleft((now, self._new))
            self._new = Counter()
        while self._told and now - self._told[-1][0] >= WINDOW:
            self._told.pop()
        for until, counts in self._told:
            yield now - until, [counts[queue] for queue in self._queues]


def say_draining(connection: psycopg.Connection[Any], names: Names, owner: Owner) -> None:
    """Say in this worker's row that it claims nothing more; not where somebody keeps the table locked."""
    with suppress(psycopg.errors.LockNotAvailable):
        _write(connection, names, DRAINING, {"pid": owner[0], "start": owner[1]})


def publish(connection: psycopg.Connection[Any], names: Names, owner: Owner, tally: Tally) -> None:
    """Say it in this worker's row."""
    told = [*tally.telling(time.monotonic())]
    ago, ended = [seconds for seconds, _ in told], [counts for _, counts in told]
    values = {"ago": ago, "ended": ended, "pid": owner[0], "start": owner[1]}
    try:
        _write(connection, names, TELL, values)
    except psycopg.errors.LockNotAvailable:
        tally.unsaid()


def _write(connection: psycopg.Connection[Any], names: Names, statement: str, values: dict[str, Any]) -> None:
    with connection.transaction():
        connection.execute(
            names.sql(LOCK), {}
        )  # with values, though none: a name may have a percent sign, doubled there
        connection.execute(names.sql(statement), values)
