"""What there is, as an operator lists it. A job runs where its lock is held. No job class is needed, and no arguments
are read but those that the filter compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Row

from ..status.questions import HELD, UTC
from .bounds import Bound, Where, bounded
from .filter import Filter
from .states import LIVE

MOST: Final = 100_000  # jobs that are drawn for one act


@dataclass(frozen=True)
class Seen:
    """A job as it was seen. An act on it names the version: what has changed since is left out."""

    id: UUID
    version: int
    job_class: str
    queue: str
    state: str


@dataclass(frozen=True)
class Listed(Seen):
    """One line of a list; times are text, in UTC. `why` is the first line of its last error."""

    priority: int
    run_at: str
    enqueued_at: str
    error_count: int
    failed_at: str | None
    expired_at: str | None
    finished_at: str | None
    why: str | None


@dataclass(frozen=True)
class Shown(Listed):
    """All that a row says. `arguments` and `context` are None unless asked for; they hold what is sensitive, too."""

    last_error: str | None
    arguments: Any
    context: Any


class _Part(NamedTuple):
    """One of the table's indexes, and its order: nothing else is read, and no more of it than is shown."""

    where: str
    order: str
    since: str


# Live ones in the order in which workers take them; of the others the latest first, of the finished by class.
PARTS: Final = {
    "live": _Part(
        "finished_at IS NULL AND expired_at IS NULL",
        "found.queue, found.priority, found.run_at, found.id",
        "enqueued_at",
    ),
    "expired": _Part("expired_at IS NOT NULL", "found.expired_at DESC", "expired_at"),
    "finished": _Part(
        "finished_at IS NOT NULL AND expired_at IS NULL",
        "found.job_class DESC, found.finished_at DESC",
        "finished_at",
    ),
}
BY_ID: Final = "id = ANY((:ids)::uuid[])"
ANY_AGE: Final = "coalesce(expired_at, finished_at, enqueued_at)"

# The lock decides what runs. To hash the ids of the rows costs 0.2 µs each, and needs none of the workers' notes.
FOUND: Final = f"""
WITH held AS MATERIALIZED ({HELD})
SELECT {{columns}} FROM (
  SELECT {{read}}, CASE WHEN expired_at IS NOT NULL THEN 'expired' WHEN finished_at IS NOT NULL THEN 'finished'
                 WHEN uuid_hash_extended(id, :oid) IN (SELECT key FROM held WHERE objsubid = 1) THEN 'running'
                 WHEN run_at > statement_timestamp() THEN 'scheduled' ELSE 'ready' END AS state
    FROM {{{{schema}}}}magik_jobs j WHERE {{where}}) found
 WHERE state = ANY((:states)::text[])
    OR 'errored' = ANY((:states)::text[]) AND error_count > 0 AND state IN ('ready', 'running', 'scheduled')
 {{order}} LIMIT :limit"""

# Not "*": a role that may not see arguments may list jobs.
READ: Final = (
    "id, version, job_class, queue, priority, run_at, enqueued_at, error_count, failed_at, expired_at, finished_at,"
    " last_error"
)
BRIEF: Final = "id, version, job_class, queue, state"
TIMES: Final = ("run_at", "enqueued_at", "failed_at", "expired_at", "finished_at")
FULL: Final = ", ".join(
    (
        f"{BRIEF}, priority, error_count, left(split_part(last_error, chr(10), 1), 500) AS why",
        *(f"{UTC.format(f'found.{name}', f'found.{name}')} AS {name}" for name in TIMES),
    )
)
ALL: Final = f"{FULL}, last_error, NULL AS arguments, NULL AS context"
EVERYTHING: Final = f"{FULL}, last_error, args::text AS arguments, context::text AS context"


def listed(where: Where, chosen: Filter, limit: int = 50) -> list[Listed]:
    """The first `limit` jobs of a filter: live ones as workers will take them, then the latest dead letters."""
    with bounded(where) as bound:
        return [Listed(**_values(row)) for row in _found(bound, chosen, FULL, limit)]


def drawn(where: Where, chosen: Filter, limit: int = MOST) -> list[Seen]:
    """The same, as much as an act needs of it."""
    with bounded(where) as bound:
        return [Seen(**_values(row)) for row in _found(bound, chosen, BRIEF, limit)]


def show(where: Where, job_id: UUID, *, arguments: bool = False) -> Shown | None:
    """One job; `arguments` asks for those and the context, as JSON text. None where there is no such row (any more)."""
    with bounded(where) as bound:
        rows = [*_found(bound, Filter(ids=[job_id]), EVERYTHING if arguments else ALL, 1)]
    return Shown(**_values(rows[0])) if rows else None


def _found(bound: Bound, chosen: Filter, columns: str, limit: int) -> Iterator[Row[Any]]:
    """Part by part. No order for ids: what the planner is to follow is the primary key."""
    if chosen.ids:
        places = {str(each): place for place, each in enumerate(chosen.ids)}
        rows = _ask(bound, chosen, columns, _Part(BY_ID, "", ANY_AGE), len(places))
        yield from sorted(rows, key=lambda row: places[str(row.id)])[:limit]
        return
    for name, part in PARTS.items():
        if limit > 0 and set(chosen.wanted) & ({*LIVE} if name == "live" else {name}):
            rows = _ask(bound, chosen, columns, part, limit)
            limit -= len(rows)
            yield from rows


def _ask(bound: Bound, chosen: Filter, columns: str, part: _Part, limit: int) -> Sequence[Row[Any]]:
    where = " AND ".join([part.where, *chosen.conditions(part.since)])
    order = f"ORDER BY {part.order}" if part.order else ""
    read = f"{READ}, args, context" if columns is EVERYTHING else READ
    statement = FOUND.format(columns=columns, read=read, where=where, order=order)
    return bound.ask(statement, {**chosen.parameters(), "limit": limit})


def _values(row: Row[Any]) -> dict[str, Any]:
    return {**row._mapping, "id": UUID(str(row.id))}
