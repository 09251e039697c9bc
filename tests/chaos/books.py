"""What the database knows at the end: triggers keep books of every job that was added, failed or ended, and of ticks.

They write in the transaction of what they note, so they have it if, and only if, it was committed; and
track_commit_timestamp tells when.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg

XID = "xid xid8 NOT NULL DEFAULT pg_current_xact_id()"

BOOKS = f"""
CREATE TABLE chaos_enqueued (id uuid, job_class text, args jsonb, key bytea, run_at timestamptz, {XID});
CREATE TABLE chaos_failed (id uuid, error text, {XID});
CREATE TABLE chaos_ended (id uuid, {XID});
CREATE TABLE chaos_ticks (schedule text, tick timestamptz, next timestamptz, {XID});
"""

# The jobs of one kind of change each: a trigger that looks at its own arguments would be longer than three.
TRIGGER = """
CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN {does}; RETURN NULL; END $body$;
CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW {when} EXECUTE FUNCTION {name}()"""
TRIGGERS = (
    {
        "name": "chaos_enqueue",
        "event": "INSERT",
        "table": "magik_jobs",
        "when": "",
        "does": "INSERT INTO chaos_enqueued VALUES (NEW.id, NEW.job_class, NEW.args, NEW.key_digest, NEW.run_at)",
    },
    {
        "name": "chaos_fail",
        "event": "UPDATE",
        "table": "magik_jobs",
        "when": "WHEN (NEW.error_count > OLD.error_count)",
        "does": "INSERT INTO chaos_failed VALUES (NEW.id, split_part(NEW.last_error, E'\\n', 1))",
    },
    {
        "name": "chaos_expire",
        "event": "UPDATE",
        "table": "magik_jobs",
        "when": "WHEN (OLD.expired_at IS NULL AND NEW.expired_at IS NOT NULL)",
        "does": "INSERT INTO chaos_ended VALUES (NEW.id)",
    },
    {
        "name": "chaos_end",
        "event": "DELETE",
        "table": "magik_jobs",
        "when": "",
        "does": "INSERT INTO chaos_ended VALUES (OLD.id)",
    },
    {
        "name": "chaos_tick",
        "event": "UPDATE",
        "table": "magik_job_schedules",
        "when": "WHEN (NEW.next_run_at IS DISTINCT FROM OLD.next_run_at)",
        "does": "INSERT INTO chaos_ticks VALUES (NEW.name, OLD.next_run_at, NEW.next_run_at)",
    },
)

AT = "extract(epoch FROM pg_xact_commit_timestamp(xid::xid))::float8"
ENQUEUED = f"""
SELECT id, job_class, args, key, {AT}, greatest({AT}, extract(epoch FROM run_at)::float8), xid::text
  FROM chaos_enqueued"""
FAILED = f"SELECT id, error, {AT} FROM chaos_failed ORDER BY xid"
ENDED = f"SELECT id, {AT} FROM chaos_ended"
TICKS = (
    "SELECT schedule, extract(epoch FROM tick)::float8, extract(epoch FROM next)::float8, xid::text FROM chaos_ticks"
)
DEAD = "SELECT id, last_error FROM magik_jobs WHERE expired_at IS NOT NULL"
LIVE = "SELECT id FROM magik_jobs WHERE finished_at IS NULL AND expired_at IS NULL"
ENTRIES = "SELECT job_id, part, count(*) FROM entries GROUP BY 1, 2"


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job that was committed: when that was, and when it could start (seconds since 1970); its transaction."""

    id: UUID
    job_class: str
    args: dict[str, Any]
    key: bytes | None
    at: float
    due: float
    transaction: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """A tick that was claimed: the moment it stands for, the one that follows, and its transaction."""

    schedule: str
    tick: float
    next: float
    transaction: str


@dataclass
class Books:
    """All of it. `failed` has of each job what it failed of, and when; `entries` how often a part was written."""

    enqueued: list[Enqueued] = field(default_factory=list)
    failed: list[tuple[UUID, str, float]] = field(default_factory=list)
    ended: list[tuple[UUID, float]] = field(default_factory=list)
    ticks: list[Ticked] = field(default_factory=list)
    dead: dict[UUID, str] = field(default_factory=dict)
    live: set[UUID] = field(default_factory=set)
    entries: Counter[tuple[UUID, int]] = field(default_factory=Counter)
    bookings: Counter[int] = field(default_factory=Counter)
    accounts: dict[int, Decimal] = field(default_factory=dict)


def open_books(connection: psycopg.Connection[Any]) -> None:
    """Install the books, before anything is added."""
    connection.execute(BOOKS.encode())
    for trigger in TRIGGERS:
        connection.execute(TRIGGER.format(**trigger).encode())


def read(connection: psycopg.Connection[Any]) -> Books:
    """What stands in them."""

    def rows(statement: str) -> list[tuple[Any, ...]]:
        return connection.execute(statement.encode()).fetchall()

    return Books(
        enqueued=[Enqueued(*row) for row in rows(ENQUEUED)],
        failed=[(id, error or "", at) for id, error, at in rows(FAILED)],
        ended=[(id, at) for id, at in rows(ENDED)],
        ticks=[Ticked(*row) for row in rows(TICKS)],
        dead=dict(rows(DEAD)),
        live={id for (id,) in rows(LIVE)},
        entries=Counter({(id, part): count for id, part, count in rows(ENTRIES)}),
        bookings=Counter(transfer for (transfer,) in rows("SELECT transfer FROM bookings")),
        accounts=dict(rows("SELECT number, balance FROM accounts")),
    )
