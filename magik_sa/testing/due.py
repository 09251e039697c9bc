"""The claim of a drain: due jobs one at a time, on the connection that they are run on.

What a test has not committed no other connection sees, so the worker's own claim cannot be used. Its lock is, for as
long as a job runs: a worker on the same database leaves the job alone, and one that a worker runs is left alone here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from uuid import UUID

from sqlalchemy import BigInteger, ColumnElement, Executable, func, literal, literal_column, select

from ..claim import Claimed
from ..enqueue import Job, declared
from .stage import Stage

JOBS: Final = Job.__table__
KEY: Final = func.uuid_hash_extended(
    JOBS.c.id, literal_column("tableoid::bigint"), type_=BigInteger
)  # see claim/walk.py


class Due:
    """The jobs that are due on a stage, of one queue or of all."""

    def __init__(self, stage: Stage, queue: str | None) -> None:
        self._stage, self._queue = stage, queue
        self._left: set[UUID] = set()

    def leave(self, id: UUID) -> None:
        """Claim this job no more, even if its time comes meanwhile."""
        self._left.add(id)

    @contextmanager
    def claimed(self) -> Iterator[Claimed | None]:
        """The next one, locked inside of the block; None where none is left."""
        while (id := self._first()) is not None:
            with self._locked(id) as free:
                if free and (row := self._one(select(JOBS, func.now().label("claimed_at")), JOBS.c.id == id)):
                    yield Claimed(dict(row._mapping), interrupted=False, suspect=False)
                    return
            self.leave(id)
        yield None

    def _first(self) -> UUID | None:
        order = JOBS.c.priority, JOBS.c.run_at, JOBS.c.id
        row = self._one(select(JOBS.c.id).order_by(*order).limit(1), JOBS.c.id.not_in(self._left))
        return None if row is None else row.id

    @contextmanager
    def _locked(self, id: UUID) -> Iterator[bool]:
        """Whoever held the lock before may have ended the job: it has to be read again."""
        row = self._execute(select(KEY, func.pg_try_advisory_lock(KEY)).where(JOBS.c.id == id))
        key, free = (None, False) if row is None else row
        try:
            yield free
        finally:
            if free:
                self._execute(select(func.pg_advisory_unlock(literal(key, BigInteger))))

    def _one(self, asked: Any, which: ColumnElement[bool]) -> Any:
        """A due row, by the clock and not by now(), which in a test's transaction is the beginning of the test."""
        ours = [] if self._queue is None else [JOBS.c.queue == self._queue]
        live = JOBS.c.finished_at.is_(None), JOBS.c.expired_at.is_(None)
        due = JOBS.c.run_at <= func.clock_timestamp()
        return self._execute(asked.where(which, due, *live, *ours, JOBS.c.job_class.in_(list(declared()))))

    def _execute(self, statement: Executable) -> Any:
        with self._stage.begin(self._stage.connection):
            return self._stage.connection.execute(statement).first()
