"""Removing what is over: finished rows whose class has kept them long enough, and what dead workers left behind.

Each batch is a transaction of its own, finds its rows by an index, passes over those that somebody holds, and wakes
nobody. Two at once share the work. One that ends in the middle has removed what it has removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import DBAPIError

from ..duration import duration
from ..duration import text as age_text
from ..errors import EnqueueError
from ..failure import first_line
from ..home import located
from ..job import declared
from ..job_session import read_committed
from ..meant import near
from . import statements

BATCH: Final = 1_000  # rows of one transaction
Age = str | timedelta


@dataclass
class Pruned:
    """What was removed, in rows; with `dry_run` what would be. `failed` says what was not, and why.

    `kept` are the classes that had finished rows, with the age from which these go; `left` those of whose rows nobody
    said how long they are kept: they stay.
    """

    dry_run: bool
    finished: dict[str, int] = field(default_factory=dict)  # by class
    expired: int = 0
    notes: int = 0
    workers: int = 0
    effects: int = 0
    kept: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wish:
    """What is to be removed. `keep`: how long each class keeps its finished rows; None where `older_than` holds."""

    keep: Mapping[str, timedelta]
    older_than: timedelta | None = None
    job_class: str | None = None
    expired_older_than: timedelta | None = None
    effects_older_than: timedelta | None = None


def prune(
    connection: Any,
    *,
    older_than: Age | None = None,
    job_class: str | None = None,
    expired_older_than: Age | None = None,
    effects_older_than: Age | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove finished rows that the classes which this process knows have kept long enough, and orphaned notes.

    With `older_than` ("30d") those of all classes that are older, whatever their classes say, so that none need be
    known. `job_class` leaves out the rows of all others. Dead letters and the memory of `once` go only where they are
    named: `expired_older_than`, `effects_older_than`. On a Connection outside of a transaction, as each batch of 1,000
    rows commits. Raises `EnqueueError` ``MAGIK_PRUNE_INVALID``, `DeclarationError` ``MAGIK_DURATION_INVALID``.
    """
    if not isinstance(connection, Connection) or connection.in_transaction():
        raise _invalid("It takes a Connection that is in no transaction.", "connection")
    ages = (("older_than", older_than), ("expired_older_than", expired_older_than))
    finished, expired = (None if age is None else duration(age, field=name) for name, age in ages)
    effects = None if effects_older_than is None else duration(effects_older_than, field="effects_older_than")
    keep = kept()
    if job_class is not None and finished is None and expired is None and job_class not in keep:
        raise _invalid(
            f"No class {job_class!r} says here how long its rows are kept{near(job_class, keep)}", "job_class"
        )
    return carry_out(connection, Wish(keep, finished, job_class, expired, effects), dry_run=dry_run)


def kept() -> dict[str, timedelta]:
    """How long each class that this process knows keeps its finished rows; those that keep none are left out."""
    return {name: cls.__magik__.keep for name, cls in declared().items() if cls.__magik__.keep is not None}


def carry_out(
    connection: Connection, wish: Wish, *, dry_run: bool = False, stop: Callable[[], bool] = lambda: False
) -> Pruned:
    """All of it, until `stop` says so between two batches. What cannot be removed keeps nothing else from it."""
    work = _Work(connection, stop, Pruned(dry_run))
    work.prune(wish)
    return work.done


class _Work:
    def __init__(self, connection: Connection, stop: Callable[[], bool], done: Pruned) -> None:
        self._connection, self._stop, self.done = connection, stop, done

    def prune(self, wish: Wish) -> None:
        for name, age in self._finished(wish).items():
            values = {"age": age.total_seconds(), "job_class": name}
            if rows := self._jobs(name, statements.FINISHED, values):
                self.done.finished[name] = rows
        if wish.expired_older_than is not None:
            values = {"age": wish.expired_older_than.total_seconds(), "job_class": wish.job_class}
            named = statements.EXPIRED if wish.job_class is None else statements.EXPIRED_OF_CLASS
            self.done.expired = self._jobs("expired", named, values)
        self.done.notes = self._remove("notes", statements.NOTES, statements.NOTES_COUNT, {})
        self.done.workers = self._remove("workers", statements.WORKERS, statements.WORKERS_COUNT, {})
        if wish.effects_older_than is not None:
            values = {"age": wish.effects_older_than.total_seconds(), "scope": "", "key_digest": b""}
            self.done.effects = self._remove("effects", statements.EFFECTS, statements.EFFECTS_COUNT, values)

    def _finished(self, wish: Wish) -> dict[str, timedelta]:
        """The classes to look at, and the age from which their rows go. Notes which are left alone."""
        found: list[str] = []
        with self._failing("finished"):
            found = [row.job_class for row in self._run(statements.CLASSES, {})]
        known = dict.fromkeys(found, wish.older_than) if wish.older_than is not None else wish.keep
        asked = [name for name in found if wish.job_class in (None, name)]
        self.done.left = [name for name in asked if name not in known]
        ages = {name: age for name in asked if (age := known.get(name)) is not None}
        self.done.kept = {name: age_text(age) for name, age in ages.items()}
        return ages

    def _jobs(self, part: str, kind: Mapping[str, str], values: dict[str, Any]) -> int:
        given = {**values, "since": "-infinity"}
        return self._remove(part, statements.JOBS, statements.JOBS_COUNT, given, **kind)

    def _remove(self, part: str, statement: str, count: str, values: dict[str, Any], **places: str) -> int:
        """Batch after batch; how many rows went. The values that a batch names are those of the next."""
        rows = 0
        with self._failing(part):
            if self.done.dry_run:
                return int(self._one(count, values, places).rows)
            for batch in self._batches(statement, values, places):
                rows += batch.rows
        return rows

    def _batches(self, statement: str, values: dict[str, Any], places: Mapping[str, str]) -> Iterator[Row[Any]]:
        read = BATCH
        while read >= BATCH and not self._stop():
            batch = self._one(statement, {**values, "batch": BATCH}, places)
            read, values = (
                batch.read,
                {**values, **{key: said for key, said in batch._mapping.items() if key in values}},
            )
            yield batch

    def _one(self, statement: str, values: dict[str, Any], places: Mapping[str, str]) -> Row[Any]:
        (row,) = self._run(statement, values, places)
        return row

    def _run(self, statement: str, values: dict[str, Any], places: Mapping[str, str] | None = None) -> list[Row[Any]]:
        """One transaction of its own."""
        with read_committed(self._connection):
            self._connection.execute(text(statements.SETTINGS))
            return list(self._connection.execute(text(located(statement, **(places or {}))), values))

    @contextmanager
    def _failing(self, part: str) -> Iterator[None]:
        """What the server refuses is told, and the rest goes on; not where there is no connection any more."""
        try:
            yield
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            self.done.failed[part] = first_line(error)


def _invalid(what: str, name: str) -> EnqueueError:
    return EnqueueError("MAGIK_PRUNE_INVALID", what, field=name)
