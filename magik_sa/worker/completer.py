"""The completer: ends the jobs that wrote nothing, as many in one commit as have gathered while the last one ran."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from typing import Any, Final
from uuid import UUID

import psycopg

from ..claim import Claimed
from ..completing import complete, complete_left
from ..failure import headline
from ..job import class_of
from ..logs import say
from ..names import Names
from ..outcome import Outcome
from .letters import Ended

AGAIN_AFTER: Final = 0.05  # seconds until a row that somebody has locked is tried again
LONGEST_PAUSE: Final = 0.5  # seconds, when that has gone on for a while
MOST: Final = 500  # rows in one commit
KEPT: Final = "A trigger, a rule or a policy of the table keeps the row."

# What says nothing about a row: a server that takes no writes, has no room or goes down. (08 is of no connection of
# ours, for that is open: a trigger may ask another server, by dblink or a foreign table, and not reach it.)
_OF_THE_SERVER: Final = ("25", "53", "57", "58")
_OF_THE_MOMENT: Final = ("40", "55")  # a deadlock, or a lock on what goes with the row

# One at a time, a foreign key's rows that somebody has locked hold up nothing.
_ALONE: Final = b"SET lock_timeout = '20ms'"
_AS_BEFORE: Final = b"RESET lock_timeout"
_IS_FREE: Final = "LOCK TABLE {jobs} IN ROW EXCLUSIVE MODE NOWAIT"


class Completer:
    """What the locker does for the performers between two claims, on its own connection."""

    def __init__(self) -> None:
        self._due: list[Ended] = []
        self._locked: list[Ended] = []
        self._again_at, self._pause = 0.0, AGAIN_AFTER
        self._singly = 0  # of those that are due, so many are ended one by one
        self._not_here: set[str] = set()  # classes whose rows the server did not let go

    def takes(self, job: Claimed) -> bool:
        """From any thread: whether jobs of this class can be ended here."""
        return job.row["job_class"] not in self._not_here

    @property
    def due(self) -> Iterator[Claimed]:
        """The jobs that are to be ended now."""
        return (each.job for each in self._due)

    def add(self, performed: Ended) -> None:
        """Its run is over, and has left the row as it was."""
        self._due.append(performed)

    def seconds(self) -> float | None:
        """Until there is something to do; None where there is nothing."""
        if self._due:
            return 0.0
        return max(0.0, self._again_at - time.monotonic()) if self._locked else None

    def complete(self, connection: psycopg.Connection[Any], names: Names) -> Iterator[Ended]:
        """End what is due, and say of each how that went. Should this raise, what was not said of is due still."""
        if self._locked and time.monotonic() >= self._again_at:
            self._due, self._locked = [*self._due, *self._locked], []
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
        while self._due:
            alone, group = self._singly > 0, self._group()
            try:
                yield from self._end_alone(connection, names, group) if alone else self._end(connection, names, group)
            except psycopg.Error as error:
                if connection.closed or _is_of_the_server(connection, names, error):
                    raise
                yield from self._not_ended(group, alone, error)
        if not self._locked:
            self._pause = AGAIN_AFTER

    def _group(self) -> list[Ended]:
        """The next to be ended in one statement."""
        most, self._singly = (1, self._singly - 1) if self._singly else (MOST, 0)
        kind = _kind(self._due[0])
        return [each for each in self._due[:most] if _kind(each) == kind]

    def _end(self, connection: psycopg.Connection[Any], names: Names, group: list[Ended]) -> Iterator[Ended]:
        version, keep = _kind(group[0])
        gone = complete(connection, names, [each.job.id for each in group], version, keep=keep)
        yield from self._said(group, gone, Outcome.FINISHED)
        if len(gone) == len(group):
            return
        rest = [each for each in group if each.job.id not in gone]
        left = complete_left(connection, names, [each.job.id for each in rest], version, keep=keep)
        yield from self._said(rest, left.gone, Outcome.FINISHED)
        self._wait_for([each for each in rest if each.job.id in left.locked])
        for each in rest:
            if each.job.id in left.kept:
                yield self._refused(each, KEPT)
        others = {each.job.id for each in rest}.difference(*left)
        yield from self._said(rest, others, Outcome.SUPERSEDED)

    def _end_alone(self, connection: psycopg.Connection[Any], names: Names, group: list[Ended]) -> Iterator[Ended]:
        connection.execute(_ALONE)
        try:
            yield from self._end(connection, names, group)
        finally:
            if not connection.closed:
                connection.execute(_AS_BEFORE)

    def _not_ended(self, group: list[Ended], alone: bool, error: psycopg.Error) -> Iterator[Ended]:
        """A row that is referenced, or that a trigger holds fast, holds up no other: its next run ends by itself."""
        if not alone:
            self._singly = len(self._due)
        elif (error.sqlstate or "").startswith(_OF_THE_MOMENT):
            self._wait_for(group)
        else:
            yield self._refused(group[0], headline(error))

    def _refused(self, performed: Ended, error: str) -> Ended:
        row = performed.job.row
        self._not_here.add(row["job_class"])
        say(logging.WARNING, "job_not_completed", error=error, job_id=row["id"], job_class=row["job_class"])
        self._strike([performed])
        return Ended(performed.job, Outcome.UNRECORDED, performed.took)

    def _said(self, group: list[Ended], ids: Collection[UUID], outcome: Outcome) -> list[Ended]:
        said = [each for each in group if each.job.id in ids]
        self._strike(said)
        return [Ended(each.job, outcome, each.took) for each in said]

    def _wait_for(self, locked: list[Ended]) -> None:
        if locked and not self._locked:
            self._again_at = time.monotonic() + self._pause
        self._locked += locked
        self._strike(locked)

    def _strike(self, over: list[Ended]) -> None:
        out = set(map(id, over))
        self._due = [each for each in self._due if id(each) not in out]


def _is_of_the_server(connection: psycopg.Connection[Any], names: Names, error: psycopg.Error) -> bool:
    """And of none of the rows. What lasted too long is either: a lock on the table, or on what goes with a row."""
    if not isinstance(error, psycopg.errors.QueryCanceled):
        return error.sqlstate is None or error.sqlstate.startswith(_OF_THE_SERVER)
    try:
        with connection.transaction():
            connection.execute(names.sql(_IS_FREE), {})
    except psycopg.errors.LockNotAvailable:
        return True
    return False


def _kind(performed: Ended) -> tuple[int, bool]:
    row = performed.job.row
    return row["version"], class_of(row["job_class"]).__magik__.keep is not None
