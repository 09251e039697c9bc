"""What an operator does to jobs: retry, discard, cancel, run now. Each job is named with the version that was seen.

Nothing here waits for long or fails as a whole: a row that somebody holds, that has changed, or that the database
refuses is left out and told of. Until the caller commits, the locks of the jobs are held as a worker would hold them,
so that none of them starts meanwhile; one whose lock is refused runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final
from uuid import UUID

from ..errors import EnqueueError
from ..harmless import harmless
from ..version import LAST
from .batch import Act, Batch, Done
from .bounds import Where, bounded

BATCH: Final = 250  # jobs of which the locks are held at once; the lock table is the whole server's
LONGEST_WHY: Final = 1_000  # characters

# Each raises the version, so that a run which goes on with the row as it was writes nothing more.
NEXT: Final = f"version = CASE version WHEN {LAST} THEN 1 ELSE version + 1 END"
THESE: Final = "WHERE id = ANY((:ids)::uuid[]) RETURNING id"
RETRY: Final = f"""
UPDATE {{schema}}magik_jobs SET expired_at = NULL, run_at = statement_timestamp(), error_count = 0, {NEXT} {THESE}"""
RUN_NOW: Final = f"UPDATE {{schema}}magik_jobs SET run_at = statement_timestamp(), {NEXT} {THESE}"
CANCEL: Final = f"DELETE FROM {{schema}}magik_jobs {THESE}"
DISCARD: Final = f"""
UPDATE {{schema}}magik_jobs SET expired_at = statement_timestamp(), {NEXT},
       last_error = left((:why)::text || coalesce(chr(10) || chr(10) || 'before that: ' || last_error, ''), 12000)
 {THESE}"""

ACTS: Final = {
    "retry": Act(RETRY, lambda row: not row.finished and (row.expired or row.errored), revives=True),
    "run_now": Act(RUN_NOW, lambda row: not row.finished and not row.expired and row.later),
    "cancel": Act(CANCEL, lambda row: row.expired or not row.finished, running=True),
    "discard": Act(DISCARD, lambda row: not row.finished and not row.expired, running=True),
}


def retry(where: Where, seen: Mapping[UUID, int]) -> Done:
    """Make expired and errored jobs live, due, and with all their tries; the last error stays.

    `seen` has the version of each, here and below. Of several with one key the first lives; one whose key a live job
    has is left out.
    """
    return _act("retry", where, seen)


def run_now(where: Where, seen: Mapping[UUID, int]) -> Done:
    """Make scheduled jobs due, those that wait after a failure too. No try is given back."""
    return _act("run_now", where, seen)


def cancel(where: Where, seen: Mapping[UUID, int]) -> Done:
    """Delete jobs that have not finished. What a running one does through its Session rolls back at its end."""
    return _act("cancel", where, seen)


def discard(where: Where, seen: Mapping[UUID, int], *, why: str, by: str) -> Done:
    """Make live jobs dead letters, and write down why and by whom. A running one's work rolls back at its end.

    Raises what `reason` does.
    """
    return _act("discard", where, seen, why=reason(why, by))


def reason(why: str, by: str) -> str:
    """What is written down. Raises `EnqueueError` ``MAGIK_ARGS_INVALID`` unless both have 1 to 1,000 characters."""
    for name, value in (("why", why), ("by", by)):
        if not 1 <= len(value.strip()) <= LONGEST_WHY:
            raise EnqueueError("MAGIK_ARGS_INVALID", f"{name}: has to have 1 to {LONGEST_WHY} characters.", field=name)
    return harmless(f"Discarded by {by.strip()}: {why.strip()}")


def batches(seen: Mapping[UUID, int]) -> Iterator[dict[UUID, int]]:
    """As many at a time as may be acted on in one transaction; commit after each."""
    left = iter(seen.items())
    while batch := dict(islice(left, BATCH)):
        yield batch


def _act(name: str, where: Where, seen: Mapping[UUID, int], **values: Any) -> Done:
    result = Done()
    with bounded(where) as bound:
        for batch in batches(seen):
            Batch(bound, ACTS[name], values, result).run(batch)
    return result
