"""No error, whatever it is made of, is stored or logged without a bound, or keeps its outcome from being written."""

from __future__ import annotations

import psycopg
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from magik_sa.failure import LONGEST_TEXT
from tests.jobs.immense import HUGE, WAYS, Elsewhere, ImmenseFailing, Marker
from tests.tools.effects import Effects
from tests.tools.process import held
from tests.tools.sessions import advisory_locks
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

MARK = 100  # bytes, at most, of what says that something is missing
LINE = 2_000  # characters of a line of the log


def add(engine: Engine, *jobs: ImmenseFailing | Elsewhere | Marker) -> None:
    with Session(engine) as session, session.begin():
        for job in jobs:
            session.add(job)
            session.flush()  # one after the other: that is their order


def rows(dsn: str, name: str) -> dict[str, tuple[int, int, bool, str]]:
    asked = f"SELECT args->>'{name}', error_count, octet_length(last_error), expired_at IS NOT NULL, last_error"
    with psycopg.connect(dsn) as connection:
        found = connection.execute(f"{asked} FROM magik_jobs WHERE args ? '{name}'".encode()).fetchall()
    return {way: tuple(row) for way, *row in found}


def test_every_failure_is_recorded_within_its_bound_and_the_next_job_runs(
    database: str, dsn: str, engine: Engine, effects: Effects
) -> None:
    ways = [*WAYS, "statement", "discard"]
    with WorkerProcess(database, "tests.jobs.immense", concurrency=1, log_format="json") as worker:
        worker.wait_ready()
        for way in ways:
            add(engine, ImmenseFailing(way=way), Marker())
        until(lambda: effects.count("Marker") == len(ways), 60, what="a marker after each")
        until(lambda: sum(advisory_locks(dsn).values()) == 1, what="only the flag of the queue")
        lines = worker.stderr().splitlines()
        assert worker.terminate() == 0
    found = rows(dsn, "way")
    assert found.keys() == set(ways)
    sizes = {way: (count, size) for way, (count, size, *_) in found.items()}
    unbounded = {
        way: told for way, told in sizes.items() if told[0] != (way != "discard") or told[1] > LONGEST_TEXT + MARK
    }
    assert not unbounded
    assert max(map(len, lines)) < LINE
    assert not [line for line in lines if "outcome_unrecorded" in line]
    said = {way: text for way, (*_, text) in found.items()}
    assert "… [cut, 15,000,000 characters in all]" in said["message"]
    assert "at the bottom" in said["frames"]
    assert "… and more causes" in said["chain"]
    assert "in this group ExceptionGroup: more (1000 sub-exceptions)" in said["group"]
    assert "… [cut, 15,000,000 characters in all]" in said["notes"]
    assert said["lying"].startswith("Lying: told all the same")
    assert said["endless"].startswith("Endless: <its text took longer than 3s to make>")
    assert found["discard"][2]


def test_wherever_it_was_raised(database: str, dsn: str, engine: Engine, effects: Effects) -> None:
    places = ["policy", "on_failure", "around"]
    with WorkerProcess(database, "tests.jobs.immense", concurrency=1) as worker:
        for where in places:
            add(engine, Elsewhere(where=where), Marker())
        until(lambda: effects.count("Marker") == len(places), 30)
        assert worker.terminate() == 0
        assert max(map(len, worker.stderr().splitlines())) < LINE
    found = rows(dsn, "where")
    assert found.keys() == set(places)
    for count, size, dead, text in found.values():
        assert (count, dead) == (1, True)
        assert size <= 2 * (LONGEST_TEXT + MARK)
        assert "characters in all" in text


def test_what_an_error_held_is_let_go_at_its_end(database: str, engine: Engine, effects: Effects) -> None:
    """Without waiting for the garbage collector: ten of them would make it half a gigabyte."""
    with WorkerProcess(database, "tests.jobs.immense", concurrency=1, fresh=True) as worker:
        add(engine, ImmenseFailing(way="message"), Marker())
        until(lambda: effects.count("Marker") == 1, 20)
        before = held(worker.pid)
        for n in range(2, 12):
            add(engine, ImmenseFailing(way="message"), Marker())
            until(lambda n=n: effects.count("Marker") == n, 20)  # type: ignore[misc]
        after = held(worker.pid)
    kib = HUGE // 1024
    assert after.rss - before.rss < kib // 10, (before, after)
    assert after.peak - before.peak < kib, (before, after)
