"""5,000 due jobs beside rows that are not to be run: scheduled, locked by somebody else, of classes unknown here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import psycopg

from ..claims import cost, taken
from ..figures import Figures, median
from ..ground import Ground
from ..scenario import Case, Scenario, World
from ..server import Missing, Server

DUE, SCHEDULED, HEAD = 5_000, 200_000, 5_000
TIMES: Final = 5  # drains of a case: one of 5,000 jobs may be over in a third of a second

# More urgent than what is due, and older; the classes and the times are those of each case.
FILL: Final = """
INSERT INTO magik_jobs (job_class, queue, priority, run_at, args)
SELECT %(job_class)s, 'default', %(priority)s, now() + %(ahead)s::interval + n * interval '1 ms', '{"seq": -1}'
  FROM generate_series(1, %(rows)s) n"""
LOCK: Final = """
SELECT count(*) FROM (
  SELECT pg_try_advisory_lock(uuid_hash_extended(id, 'magik_jobs'::regclass::oid::bigint)) FROM magik_jobs) l"""


def fill(ground: Ground, rows: int, job_class: str, priority: int, ahead: str) -> None:
    """Put them there."""
    values = {"rows": rows, "job_class": job_class, "priority": priority, "ahead": ahead}
    ground.connection.execute(FILL.encode(), values)


def drains(ground: Ground, beside: int, repeat: int) -> Figures:
    """A worker that is warm, given 5,000 jobs at once some times over; beside so many others that stay.

    What is left is counted when all have started: counting 200,000 rows keeps a core busy, of which there may be two.
    """
    ground.count_statements()
    ground.settle()
    ground.worker()
    ground.load(200, base=-1_000)
    ground.wait_started(200)
    ground.wait_left(beside)
    before, rates = taken(ground.connection), []
    for number in range(repeat):
        ground.load(DUE, base=number * DUE, batch=DUE)
        ground.wait_started(200 + (number + 1) * DUE)
        ground.wait_left(beside)
        first, *_, last = sorted(start.at for start in ground.record.starts() if start.seq // DUE == number)
        rates.append((DUE - 1) / (last - first) * 1e9)
    ground.expect_once(200 + repeat * DUE, beside)
    return {"rate": median(rates), "claim_ms": cost(ground, before)}


def scheduled(world: World, major: int, rows: int) -> Figures:
    """Due tomorrow, at a more urgent priority."""
    with world.ground(server=world.servers.of(major)) as ground:
        fill(ground, rows, "Noop", 10, "1 day")
        return drains(ground, rows, world.of(TIMES, 2))


def head(world: World, what: str) -> Figures:
    """Before all that is due."""
    with world.ground() as ground, psycopg.connect(ground.dsn, autocommit=True) as other:
        if what != "nothing":
            fill(ground, HEAD, "Noop" if what == "locked" else "Unheard", 50, "-1 hour")
        if what == "locked":
            other.execute(LOCK.encode())
        return drains(ground, 0 if what == "nothing" else HEAD, world.of(TIMES, 2))


def server_of(world: World, major: int) -> Server | None:
    try:
        return world.servers.of(major)
    except Missing:
        world.absent.add(f"PostgreSQL {major}")
        return None


def scheduled_cases(world: World) -> Iterator[Case]:
    for major in (18, 15):
        if server_of(world, major):
            yield Case(f"alone, PostgreSQL {major}", partial(scheduled, world, major, 0))
            yield Case(f"beside 200,000, PostgreSQL {major}", partial(scheduled, world, major, SCHEDULED))


def head_cases(world: World) -> Iterator[Case]:
    yield Case("alone", partial(head, world, "nothing"))
    yield Case("behind 5,000 locked rows", partial(head, world, "locked"))
    yield Case("behind 5,000 of unknown classes", partial(head, world, "unknown"))


SHOWN: Final = ("rate", "claim_ms")
SCHEDULED_ROWS: Final = Scenario(
    "scheduled", "5,000 due jobs beside 200,000 scheduled ones of a more urgent priority", scheduled_cases, SHOWN
)
HEAD_ROWS: Final = Scenario("head", "5,000 due jobs behind 5,000 that are not to be run", head_cases, SHOWN)
