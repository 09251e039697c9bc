"""Tries of a tick: what is noted of them, who is taken for dead, and how long a tick rests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import scoped_session, sessionmaker

from magik_sa import Job, Schedule, recurring, tries
from magik_sa.job_session import for_runs
from magik_sa.ticks import CLAIM, Tick, fire, look
from magik_sa.timeout import Limits
from magik_sa.timetable import Entry, adopt, sql, strange, timetable, write
from tests.tools.waiting import until


class Dying(Job, policy="system", name="tries.Dying"):
    """Its ticks make one job each."""

    schedule = Schedule(every="1h")

    def perform(self, session: OrmSession) -> None:
        """Does nothing."""


KNOWN: dict[str, type[Job]] = {"tries.Dying": Dying}
ENTRIES = timetable(KNOWN)
(MINE,) = ENTRIES.values()
OTHER = Entry(MINE.name, Dying, Schedule(every="2h"), '{"every": "2h"}')
CLEAN = (None, 0, None)


@pytest.fixture(params=["psycopg SERIALIZABLE", "psycopg2 READ COMMITTED"])
def own(database: str, request: pytest.FixtureRequest) -> Iterator[Engine]:
    driver, _, isolation = request.param.partition(" ")
    engine = create_engine(make_url(database).set(drivername=f"postgresql+{driver}"), isolation_level=isolation)
    yield engine
    engine.dispose()


@pytest.fixture
def connection(own: Engine) -> Iterator[Connection]:
    with own.connect() as connection:
        write(connection, KNOWN, ENTRIES, refuse)
        say(connection, "next_run_at = now() - interval '1 min'")
        yield connection


def refuse(entry: Entry, error: BaseException) -> None:
    raise AssertionError(f"{entry.name} failed") from error


def say(connection: Connection, what: str) -> None:
    with connection.begin():
        connection.execute(text(f"UPDATE magik_job_schedules SET {what}"))


def row(connection: Connection) -> tuple[Any, ...]:
    with connection.begin():
        return tuple(connection.execute(text("SELECT tried_at, deaths, rests_until FROM magik_job_schedules")).one())


def seen(connection: Connection) -> Tick:
    (tick,) = look(connection, ENTRIES)
    return tick


def age(connection: Connection) -> None:
    """Its note is as old as that of a dead worker."""
    say(connection, "tried_at = tried_at - interval '2100 ms'")


def test_a_tick_whose_workers_die_rests_longer_from_the_second_on(connection: Connection) -> None:
    """A claim that was never made is one whose worker has died."""
    tick = seen(connection)

    def try_() -> tuple[int, float | None]:
        begun = tries.begin(tick, connection)
        assert begun is not None
        assert (begun.note is None) == (begun.rest is not None)
        age(connection)
        return begun.deaths, begun.rest

    assert try_() == (0, None)
    assert try_() == (1, None)
    for deaths, minutes in enumerate([1, 2, 4, 8, 16, 32, 60, 60], 2):
        assert try_() == (deaths, minutes * 60)
        assert tries.begin(tick, connection) is None
        assert look(connection, ENTRIES) == []
        say(connection, "rests_until = now()")
        assert try_() == (deaths, None)


def test_a_death_is_told_once(connection: Connection) -> None:
    tick, told = seen(connection), []
    for _ in range(4):
        begun = tries.begin(tick, connection)
        told.append(begun and begun.interrupted)
        age(connection)
        if begun and begun.rest:
            say(connection, "rests_until = now()")
    assert told == [False, True, True, False]


def test_nobody_is_dead_who_was_there_a_moment_ago_or_holds_the_row(connection: Connection, engine: Engine) -> None:
    tick = seen(connection)
    with connection.begin():  # the clock stands still
        now = f"timestamptz '{datetime.now(UTC)}'"
        connection.exec_driver_sql("CREATE SCHEMA still")
        connection.exec_driver_sql(f"CREATE FUNCTION still.now() RETURNS timestamptz STABLE RETURN {now}")
        connection.exec_driver_sql("SET search_path = still, pg_catalog, public")
    assert tries.begin(tick, connection)
    say(connection, "tried_at = tried_at - interval '500 ms'")
    assert tries.begin(tick, connection) is None
    say(connection, "tried_at = tried_at - interval '1 ms'")
    with engine.begin() as busy:
        busy.execute(text("SELECT FROM magik_job_schedules FOR UPDATE"))
        assert tries.begin(tick, connection) is None
    assert tries.begin(tick, connection)


def test_who_declines_a_tick_keeps_nobody_from_it(connection: Connection, own: Engine) -> None:
    """His look may come between the note of a try and its claim, and last for as long."""
    sessions = for_runs(scoped_session(sessionmaker(own)))
    tick = seen(connection)
    begun = tries.begin(tick, connection)
    assert begun is not None
    assert begun.note is not None
    told = {"name": MINE.name, "tick": tick.at, "declaration": MINE.declaration}
    with own.connect() as other, other.begin():
        assert other.execute(sql(tries.TRY), told).one_or_none() is None
        assert other.execute(sql(CLAIM), {**told, "next": tick.following(), "note": "1"}).rowcount == 0
        assert fire(tick, begun.note, sessions, connection, Limits()) == 1
    assert row(connection) == CLEAN


def test_a_note_is_taken_back_behind_somebody_who_holds_the_row_for_a_moment(
    connection: Connection, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tries.begin(seen(connection), connection)
    assert begun is not None
    assert begun.note is not None
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as busy:
            busy.execute(text("SELECT FROM magik_job_schedules FOR UPDATE"))
            assert tries.end(MINE, begun.note, connection) is False, "for longer than a moment"
            monkeypatch.setattr(tries, "PATIENT", "SET LOCAL lock_timeout = '60s'")
            ended = pool.submit(tries.end, MINE, begun.note, connection)
            waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'tuple')")
            until(lambda: busy.scalar(waits), what="it waits")
        assert ended.result() is True
    assert row(connection) == CLEAN


@pytest.mark.parametrize("ahead", ["infinity", "2 h"])
def test_a_note_from_the_future_keeps_nobody_off(connection: Connection, ahead: str) -> None:
    at = "'infinity'" if ahead == "infinity" else f"now() + interval '{ahead}'"
    say(connection, f"tried_at = {at}, deaths = -5")
    assert tries.begin(seen(connection), connection)


def test_any_number_of_deaths_by_hand_is_counted_on(connection: Connection) -> None:
    say(connection, "tried_at = '-infinity', deaths = 2147483647")
    begun = tries.begin(seen(connection), connection)
    assert begun
    assert (begun.deaths, begun.rest) == (1000, 3600)


def test_who_was_taken_for_dead_leaves_the_tick_to_who_tries_it_now(connection: Connection, own: Engine) -> None:
    sessions = for_runs(scoped_session(sessionmaker(own)))
    tick = seen(connection)
    slow = tries.begin(tick, connection)
    age(connection)
    quick = tries.begin(tick, connection)
    assert slow is not None
    assert quick is not None
    assert slow.note is not None
    assert quick.note is not None
    assert fire(tick, slow.note, sessions, connection, Limits()) is None
    tries.end(MINE, slow.note, connection)
    assert row(connection)[0] is not None
    assert fire(tick, quick.note, sessions, connection, Limits()) == 1
    assert row(connection) == CLEAN


def ended(connection: Connection) -> None:
    begun = tries.begin(seen(connection), connection)
    assert begun is not None
    assert begun.note is not None
    tries.end(MINE, begun.note, connection)


def changed(connection: Connection) -> None:
    write(connection, KNOWN, {OTHER.name: OTHER}, refuse)


def adopted(connection: Connection) -> None:
    say(connection, """declaration = '{"every": "2h"}'""")
    (other,) = strange(connection, ENTRIES)
    assert other.due
    assert adopt(connection, MINE, other)


def resumed(connection: Connection) -> None:
    with connection.begin():
        assert recurring.pause(connection, MINE.name, "ada")
        assert recurring.resume(connection, MINE.name)


@pytest.mark.parametrize("how", [ended, changed, adopted, resumed])
def test_the_count_begins_anew_when(connection: Connection, how: Callable[[Connection], None]) -> None:
    say(connection, "deaths = 5, rests_until = now()")
    how(connection)
    assert row(connection) == CLEAN


def test_what_rests_is_not_put_back_by_an_older_release(connection: Connection) -> None:
    say(connection, """declaration = '{"every": "2h"}', rests_until = now() + interval '1 h'""")
    assert [other.due for other in strange(connection, ENTRIES)] == [False]
