"""Some jobs and one act: who is left out and why, and the others done in one statement.

A row that somebody holds, that has changed, or that the database refuses is passed over, whatever happens to others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Row
from sqlalchemy.exc import DBAPIError

from ..failure import first_line, sqlstate
from ..status.questions import HELD
from .bounds import Bound

# Why a job was left out.
GONE: Final = "gone"  # no such row any more: it has ended, or was cancelled
CHANGED: Final = "changed"  # since it was seen
STATE: Final = "state"  # the act is not for a job in this state
RUNNING: Final = "running"
BUSY: Final = "busy"  # another transaction holds the row, or its key
KEY_TAKEN: Final = "key_taken"  # a live job has its key, or one of those that were named before it
REFUSED: Final = "refused"  # by a constraint or a trigger that the application has put on the table

# Fresh values, also of a row that was changed after this statement began. One that is held elsewhere is passed over.
LOCK: Final = """
SELECT id, version, job_class || encode(key_digest, 'hex') AS key, expired_at IS NOT NULL AS expired,
       finished_at IS NOT NULL AS finished, error_count > 0 AS errored, run_at > statement_timestamp() AS later
  FROM {schema}magik_jobs WHERE id = ANY((:ids)::uuid[]) FOR UPDATE SKIP LOCKED"""
THERE: Final = "SELECT id FROM {schema}magik_jobs WHERE id = ANY((:ids)::uuid[])"

# The lock of a worker's claim, for this transaction: whoever gets it knows that the job neither runs nor starts.
FREE: Final = """
SELECT id FROM unnest((:ids)::uuid[]) id WHERE pg_try_advisory_xact_lock(uuid_hash_extended(id, :oid))"""

# Of jobs that the act is not for, without taking anything: a worker that claims one just now is not held up.
RUNS: Final = f"""
WITH held AS MATERIALIZED ({HELD})
SELECT id FROM unnest((:ids)::uuid[]) id
 WHERE uuid_hash_extended(id, :oid) IN (SELECT key FROM held WHERE objsubid = 1)"""

# LATERAL: one look into the key's index for each, whatever the planner believes of the tables.
TWINS: Final = """
SELECT dead.id, twin.id AS twin FROM {schema}magik_jobs dead CROSS JOIN LATERAL (
  SELECT live.id FROM {schema}magik_jobs live
   WHERE live.job_class = dead.job_class AND live.key_digest = dead.key_digest
     AND live.finished_at IS NULL AND live.expired_at IS NULL AND live.id <> dead.id LIMIT 1) twin
 WHERE dead.id = ANY((:ids)::uuid[])"""

UNIQUE: Final = "23505"
KEPT: Final = "a trigger, a rule or a policy of the table keeps it"
HELD_UP: Final = ("55P03", "40P01", "57014")  # lock_not_available, deadlock_detected, query_canceled
# Classes, and a code: no connection, a read-only transaction, no privilege, no room, the server ends, a snapshot that
# is too old. Anything else is said of one row: by a constraint, or by a trigger of the application's.
OF_ALL: Final = ("08", "25", "42501", "53", "57P", "58", "40001")


class Left(NamedTuple):
    """Why a job was left out; `detail` says more to a person."""

    why: str
    detail: str = ""


@dataclass
class Done:
    """What came of it: the ids `done`, which of them ran (their runs roll back at their end), and those left out."""

    done: list[UUID] = field(default_factory=list)
    ran: list[UUID] = field(default_factory=list)
    left: dict[UUID, Left] = field(default_factory=dict)


@dataclass(frozen=True)
class Act:
    """One verb: whom it `fits`, its statement, and whether it is for running jobs too."""

    statement: str
    fits: Callable[[Row[Any]], bool]
    running: bool = False
    revives: bool = False


class Batch:
    """Some jobs and one act."""

    def __init__(self, bound: Bound, act: Act, values: Mapping[str, Any], result: Done) -> None:
        self._bound, self._act, self._values, self._result = bound, act, values, result

    def run(self, seen: Mapping[UUID, int]) -> None:
        """Sort out who is left out, do it to the others."""
        rows = {UUID(str(row.id)): row for row in self._ask(LOCK, seen)}
        self._unlocked([each for each in seen if each not in rows])
        runs = self._ids(RUNS, [each for each, row in rows.items() if self._is_live_and_unfit(row)])
        fit = [each for each in seen if each in rows and self._fits(each, seen[each], rows[each], each in runs)]
        if self._act.revives:
            fit = self._without_twins(fit, rows)
        free = self._ids(FREE, fit)
        ran = [each for each in fit if each not in free]
        if not self._act.running:
            self._leave(ran, Left(RUNNING))
            fit = [each for each in fit if each in free]
        done = self._do(fit)
        self._leave([each for each in fit if each not in done and each not in self._result.left], Left(REFUSED, KEPT))
        self._result.done += [each for each in fit if each in done]
        self._result.ran += [each for each in ran if each in done]

    def _unlocked(self, ids: Sequence[UUID]) -> None:
        there = self._ids(THERE, ids)
        for each in ids:
            self._leave([each], Left(BUSY if each in there else GONE))

    def _is_live_and_unfit(self, row: Row[Any]) -> bool:
        return not (row.finished or row.expired or self._act.fits(row))

    def _fits(self, job_id: UUID, version: int, row: Row[Any], runs: bool) -> bool:
        if row.version != version:
            self._leave([job_id], Left(CHANGED))
        elif not self._act.fits(row):
            self._leave([job_id], Left(RUNNING) if runs else Left(STATE, _state(row)))
        else:
            return True
        return False

    def _without_twins(self, ids: list[UUID], rows: Mapping[UUID, Row[Any]]) -> list[UUID]:
        """One for each key, and none whose key is taken. A key that is added just now is met by the index itself."""
        keyed = [each for each in ids if rows[each].key and rows[each].expired]
        twins = {UUID(str(row.id)): str(row.twin) for row in self._ask(TWINS, keyed)}
        first: dict[str, UUID] = {}
        for each in keyed:
            other = twins.get(each) or str(first.setdefault(rows[each].key, each))
            if other != str(each):
                self._leave([each], Left(KEY_TAKEN, f"{other} has its key"))
        return [each for each in ids if each not in self._result.left]

    def _do(self, ids: Sequence[UUID]) -> set[UUID]:
        """All at once, and where one of them cannot be done, one by one."""
        try:
            return self._write(ids)
        except DBAPIError as error:
            _raise_unless_of_the_row(error)
        return {each for each in ids if self._do_one(each)}

    def _do_one(self, job_id: UUID) -> bool:
        try:
            return bool(self._write([job_id]))
        except DBAPIError as error:
            _raise_unless_of_the_row(error)
            self._leave([job_id], self._why(error))
            return False

    def _why(self, error: DBAPIError) -> Left:
        state = sqlstate(error)
        if state == UNIQUE and self._act.revives:
            return Left(KEY_TAKEN, "a job that was added just now has its key")
        return Left(BUSY) if state in HELD_UP else Left(REFUSED, first_line(error))

    def _write(self, ids: Sequence[UUID]) -> set[UUID]:
        with self._bound.connection.begin_nested():
            return self._ids(self._act.statement, ids)

    def _leave(self, ids: Sequence[UUID], why: Left) -> None:
        self._result.left.update(dict.fromkeys(ids, why))

    def _ids(self, statement: str, ids: Sequence[UUID]) -> set[UUID]:
        return {UUID(str(row.id)) for row in self._ask(statement, ids)}

    def _ask(self, statement: str, ids: Sequence[UUID] | Mapping[UUID, int]) -> Sequence[Row[Any]]:
        if not ids:
            return []
        return self._bound.ask(statement, {**self._values, "ids": [str(each) for each in ids]})


def _state(row: Row[Any]) -> str:
    """What it is, and what is there for that."""
    if row.finished:
        return "it is finished: nothing is left to be done"
    if row.expired:
        return "it is expired: magik jobs retry"
    return "it is scheduled: magik jobs run-now" if row.later else "it is ready: a worker takes it as it is"


def _raise_unless_of_the_row(error: DBAPIError) -> None:
    """What is wrong with one row is that row's; a lost connection or a missing privilege is everybody's."""
    state = sqlstate(error) or ""
    if error.connection_invalidated or not state or state.startswith(OF_ALL):
        raise error
