"""However a job is enqueued, its row says what its class and its own words say. A new way is one more line in WAYS."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from psycopg import Connection
from psycopg.rows import DictRow, dict_row
from sqlalchemy import Engine
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import sessionmaker

from magik_sa import Schedule, bulk_enqueue, context, timetable, tries
from magik_sa.claim import Busy
from magik_sa.outcome import Outcome
from magik_sa.ticks import fire, look
from magik_sa.timeout import Limits
from magik_sa.timetable import Entry
from tests.jobs.optioned import Optioned
from tests.tools.bench import Bench

MOMENT = datetime.fromisoformat("2030-01-02T03:04:05+00:00")
WORDS: dict[str, dict[str, Any]] = {
    "none": {},
    "queue": {"queue": "other"},
    "priority": {"priority": -5},
    "delay": {"delay": "30m"},
    "run_at": {"run_at": MOMENT},
    "all": {"queue": "other", "priority": 0, "run_at": MOMENT},
}


@dataclass
class House:
    """Where jobs are added and run, and their rows are read."""

    session: sessionmaker[OrmSession]
    bench: Bench
    app: Connection[DictRow]

    def add(self, **given: Any) -> None:
        with self.session() as session, session.begin():
            session.add(Optioned(tenant=1, month="2026-11", **given))

    def run(self) -> Outcome:
        """Run the one job that there is, now."""
        self.app.execute("UPDATE magik_jobs SET run_at = now() WHERE finished_at IS NULL")
        queue = self.row()["queue"]
        (claimed,) = self.bench.claims.claim(queue, 1, ["shop.optioned"], Busy((), ())).jobs
        outcome = self.bench.run(claimed)
        self.bench.claims.release([claimed])
        return outcome

    def row(self) -> dict[str, Any]:
        """The one row that is live."""
        query = "SELECT *, run_at - enqueued_at AS wait, run_at - failed_at AS pause FROM magik_jobs"
        (row,) = self.app.execute(f"{query} WHERE finished_at IS NULL".encode()).fetchall()
        return row


@pytest.fixture
def house(dsn: str, engine: Engine, Session: sessionmaker[OrmSession]) -> Iterator[House]:
    token = context.set({"actor": "ada"})
    with engine.connect() as connection, Connection[DictRow].connect(dsn, autocommit=True, row_factory=dict_row) as app:
        bench = Bench(dsn, connection)
        yield House(Session, bench, app)
        bench.locking.close()
    context.reset(token)


# ---- ways: each enqueues one job with these words, and leaves one live row


def added(house: House, words: dict[str, Any]) -> None:
    house.add(**words)


def many(house: House, words: dict[str, Any]) -> None:
    with house.session() as session, session.begin():
        assert bulk_enqueue(session, [Optioned(tenant=1, month="2026-11", **words)]) == 1


def no_tick(entry: Entry, error: BaseException) -> None:
    raise error


def ticked(house: House, words: dict[str, Any]) -> None:
    schedule = Schedule(every="1h", args=words)
    entry = Entry("shop.optioned", Optioned, schedule, json.dumps(schedule.declaration()))
    timetable.write(house.bench.connection, {"shop.optioned": Optioned}, {entry.name: entry}, no_tick)
    house.app.execute("UPDATE magik_job_schedules SET next_run_at = now()")
    (tick,) = look(house.bench.connection, {entry.name: entry})
    begun = tries.begin(tick, house.bench.connection)
    assert begun is not None
    assert begun.note is not None
    assert fire(tick, begun.note, house.bench.sessions, house.bench.connection, Limits()) == 1


def tried_again(house: House, words: dict[str, Any]) -> None:
    house.add(then="fail", **words)
    assert house.run() is Outcome.RETRY


def followed(house: House, words: dict[str, Any]) -> None:
    plain = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in words.items()}
    house.add(then="next", words=plain)
    assert house.run() is Outcome.FINISHED


WAYS: list[Callable[[House, dict[str, Any]], None]] = [added, many, ticked, tried_again, followed]


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_a_class_and_a_job_say_stands_in_the_row(
    house: House, way: Callable[[House, dict[str, Any]], None], words: dict[str, Any]
) -> None:
    way(house, words)
    row = house.row()
    assert row["job_class"] == "shop.optioned"
    assert (row["queue"], row["priority"]) == (words.get("queue", "payments"), words.get("priority", 7))
    assert {name: row["args"][name] for name in ("tenant", "month", "note", "token")} == {
        "tenant": 1,
        "month": "2026-11",
        "note": "as declared",
        "token": "secret",
    }
    assert row["context"] == {"actor": "ada"}
    assert row["key_digest"] == Optioned(tenant=1, month="2026-11").key_digest
    assert due(row, words), "not before its time, nor later"
    house.add()  # its key is taken, however it came there
    assert house.row()["id"] == row["id"]


def due(row: dict[str, Any], words: dict[str, Any]) -> bool:
    if row["failed_at"] is not None:  # its time is that of its next try
        return bool(row["pause"] == timedelta(hours=1))
    if "run_at" in words:
        return bool(row["run_at"] == MOMENT)
    return bool(row["wait"] == (timedelta(minutes=30) if "delay" in words else timedelta(0)))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_a_class_says_of_the_end_holds(house: House, way: Callable[[House, dict[str, Any]], None]) -> None:
    """`keep`: the row of a job that ended well stays."""
    way(house, {})
    id = house.row()["id"]
    house.app.execute("""UPDATE magik_jobs SET args = args || '{"then": "end"}' WHERE id = %s""", (id,))
    assert house.run() is Outcome.FINISHED
    kept = house.app.execute("SELECT finished_at FROM magik_jobs WHERE id = %s", (id,)).fetchone()
    assert kept is not None
    assert kept["finished_at"]
