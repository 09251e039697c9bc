"""The schedules that this process declares, and the rows that say so in the database.

One row a schedule, written when a worker starts. Moments travel as seconds since 1970 (`Decimal`, exact), which every
row can give, whatever the server's DateStyle and whatever somebody wrote into it by hand; this machine's clock is
never read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, TextClause, text

from . import names
from .job import Job
from .job_session import read_committed
from .schedule import Schedule
from .settings import schema

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Entry:
    """One schedule of one job class. `name` is that of its row, `declaration` the JSON in it."""

    name: str
    cls: type[Job]
    schedule: Schedule
    declaration: str

    def __str__(self) -> str:
        return f"{self.name}: {' '.join(self.schedule.declaration().values())}"


def timetable(known: Mapping[str, type[Job]]) -> dict[str, Entry]:
    """Every schedule of these job classes by the name of its row."""
    found = (_entry(cls, schedule) for cls in known.values() for schedule in cls.__magik__.schedules)
    return {entry.name: entry for entry in found}


def _entry(cls: type[Job], schedule: Schedule) -> Entry:
    declaration = json.dumps(schedule.declaration(), sort_keys=True)
    return Entry(schedule.row(cls.__magik__.name), cls, schedule, declaration)


def moment(seconds: str) -> datetime:
    """An instant, from seconds since 1970. What is older was written by hand, and counts as 1970."""
    return EPOCH + timedelta(microseconds=int(max(Decimal(seconds), Decimal(0)) * 1_000_000))


@cache
def sql(statement: str) -> TextClause:
    """A statement with the table's name in it, in which a colon would begin a parameter."""
    return text(statement.format(schedules=names.table("magik_job_schedules", schema()).replace(":", r"\:")))


# What this process declares, as a table to join with.
MINE: Final = """
unnest(CAST(:names AS text[]), CAST(CAST(:declarations AS text[]) AS jsonb[])) mine (name, declaration)"""


def mine(entries: Mapping[str, Entry]) -> dict[str, list[str]]:
    """The parameters of `MINE`."""
    return {"names": list(entries), "declarations": [entry.declaration for entry in entries.values()]}


# No worker has died of its tick so often that it is left alone for a while; `tries` has the rule.
AWAKE: Final = "(rests_until IS NULL OR rests_until <= now())"

# ---- when a worker starts

BOUND: Final = "SET LOCAL lock_timeout = '2s'"  # a row is locked while its on_schedule runs: later is soon enough

KNOWN: Final = f"""
SELECT CAST(extract(epoch FROM now()) AS text) AS now,
       ARRAY(SELECT s.name FROM {{schedules}} s JOIN {MINE} USING (name, declaration)) AS same"""

# Only where it says something else: last_run_at and a pause outlive a change. Of workers that start at once the first
# one's next tick stands.
PUT: Final = """
INSERT INTO {schedules} AS s (name, job_class, declaration, next_run_at)
VALUES (:name, :job_class, CAST(:declaration AS jsonb), :next)
    ON CONFLICT (name) DO UPDATE
   SET job_class = excluded.job_class, declaration = excluded.declaration, next_run_at = excluded.next_run_at,
       tried_at = NULL, deaths = 0, rests_until = NULL
 WHERE (s.job_class, s.declaration) IS DISTINCT FROM (excluded.job_class, excluded.declaration)"""

DROP: Final = """
DELETE FROM {schedules} WHERE job_class = ANY(CAST(:classes AS text[])) AND name <> ALL(CAST(:names AS text[]))"""


def write(
    connection: Connection,
    known: Mapping[str, type[Job]],
    entries: Mapping[str, Entry],
    failed: Callable[[Entry, BaseException], None],
) -> None:
    """Make the rows say what the classes known here say; rows of other classes stay as they are.

    Where nothing changed nothing is written. Rows are written in the order of their names, so that workers that start
    at once wait for each other instead of blocking each other. A schedule that cannot tell its first tick is left out,
    and `failed` is told.
    """
    with read_committed(connection):
        connection.execute(text(BOUND))
        found = connection.execute(sql(KNOWN), mine(entries)).one()
        for name in sorted(entries.keys() - set(found.same)):
            try:
                first = entries[name].schedule.first(moment(found.now))
            except Exception as error:
                failed(entries[name], error)
                continue
            _put(connection, entries[name], first)
        connection.execute(sql(DROP), {"classes": list(known), "names": list(entries)})


def _put(connection: Connection, entry: Entry, first: datetime) -> None:
    row = {"name": entry.name, "job_class": entry.cls.__magik__.name, "declaration": entry.declaration}
    connection.execute(sql(PUT), {**row, "next": first})


# ---- while it works

# Each try of a tick leaves its transactions' numbers: by them somebody does run what the row says.
STRANGE: Final = f"""
SELECT mine.name, CAST(s.declaration AS text) AS said, CAST(extract(epoch FROM s.next_run_at) AS text) AS at,
       s.paused_at IS NULL AND s.next_run_at <= now() AND {AWAKE} AS due,
       CAST(s.xmin AS text) || ' ' || CAST(s.xmax AS text) AS tried
  FROM {MINE} LEFT JOIN {{schedules}} s USING (name)
 WHERE s.declaration IS DISTINCT FROM mine.declaration"""

# Its tick stays: it fires as this process understands it, once. Where somebody is just busy with it, it is not adopted.
ADOPT: Final = """
UPDATE {schedules} SET declaration = CAST(:declaration AS jsonb), tried_at = NULL, deaths = 0, rests_until = NULL
 WHERE name = (SELECT name FROM {schedules} WHERE name = :name FOR UPDATE SKIP LOCKED)
   AND declaration = CAST(:said AS jsonb) AND CAST(extract(epoch FROM next_run_at) AS text) = :at
   AND paused_at IS NULL"""


class Strange(NamedTuple):
    """A row that says something else than this process does; of one that is gone all is None.

    A newer release has written it, or taken it away: it is not for this process to run, nor to put back.
    """

    name: str
    said: str | None
    at: str | None  # as in a Tick
    due: bool | None
    tried: str | None  # alike in two looks: nobody has tried to fire it between them


def strange(connection: Connection, entries: Mapping[str, Entry]) -> list[Strange]:
    """The rows that do not say what this process says."""
    with connection.begin():
        return [Strange(*row) for row in connection.execute(sql(STRANGE), mine(entries))]


def adopt(connection: Connection, entry: Entry, row: Strange) -> bool:
    """Put this process's declaration back where nobody runs what the row says: the newer release was taken back."""
    told: dict[str, Any] = {"name": entry.name, "declaration": entry.declaration, "said": row.said, "at": row.at}
    with connection.begin():
        return bool(connection.execute(sql(ADOPT), told).rowcount == 1)
