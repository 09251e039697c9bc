"""The rows of schedules and the claim of a tick, as one worker's scheduler does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from threading import Barrier
from typing import Any

import pytest
from psycopg.adapt import Loader
from psycopg.types.numeric import FloatLoader
from psycopg.types.string import TextLoader
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import scoped_session, sessionmaker

from magik_sa import EnqueueError, Job, Schedule, recurring, timetable, tries
from magik_sa.job_session import for_runs
from magik_sa.ticks import Contended, ScheduleFailed, Tick, look
from magik_sa.ticks import fire as claim
from magik_sa.timeout import Limits
from magik_sa.timetable import Entry, moment

LIMITS = Limits()  # without a watchdog they interrupt nothing, and still judge
HOURLY, EVERY_TWO = Schedule(every="1h"), Schedule(every="2h")


class Hourly(Job, policy="system", name="integration.Hourly"):
    """Its ticks make one job each."""

    schedule = HOURLY

    def perform(self, session: OrmSession) -> None:
        """Does nothing."""


def entry(schedule: Schedule = HOURLY, name: str = "") -> Entry:
    named = Schedule(every=schedule.every, name=name or None)
    return timetable._entry(Hourly, named)


def table(*entries: Entry) -> dict[str, Entry]:
    return {entry.name: entry for entry in entries}


MINE = entry()
KNOWN: dict[str, type[Job]] = {MINE.name: Hourly}


def refuse(entry: Entry, error: BaseException) -> None:
    raise AssertionError(f"{entry.name} failed") from error


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        yield connection


@pytest.fixture(params=["psycopg", "psycopg2"])
def driven(database: str, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine on each of the drivers."""
    engine = create_engine(make_url(database).set(drivername=f"postgresql+{request.param}"))
    yield engine
    engine.dispose()


@pytest.fixture
def sessions(engine: Engine) -> scoped_session[OrmSession]:
    return for_runs(scoped_session(sessionmaker(engine)))


@pytest.fixture
def write(connection: Connection) -> Callable[..., None]:
    """Writes the rows as a worker does that declares these."""

    def write(*entries: Entry) -> None:
        timetable.write(connection, KNOWN, table(*entries), refuse)

    return write


def ask(connection: Connection, statement: str, **values: Any) -> list[Any]:
    with connection.begin():
        result = connection.execute(text(statement), values)
        return list(result) if result.returns_rows else []


def rows(connection: Connection) -> dict[str, Any]:
    found = ask(connection, "SELECT name, declaration->>'every', next_run_at FROM magik_job_schedules")
    return {name: (every, tick) for name, every, tick in found}


def due(connection: Connection, to: str = "now() - interval '90 min'") -> None:
    ask(connection, f"UPDATE magik_job_schedules SET next_run_at = {to}")


def ticks(connection: Connection, *entries: Entry) -> list[Tick]:
    return look(connection, table(*entries or (MINE,)))


def fire(tick: Tick, sessions: scoped_session[OrmSession], connection: Connection) -> int | None:
    """As the scheduler does, of whose try nothing is left."""
    begun = tries.begin(tick, connection)
    if begun is None or begun.note is None:
        return None
    try:
        return claim(tick, begun.note, sessions, connection, LIMITS)
    finally:
        tries.end(tick.entry, begun.note, connection)


# ---- rows


def test_rows_are_written_once_and_then_left_alone(connection: Connection, write: Callable[..., None]) -> None:
    write(MINE, entry(name="b"))
    before = ask(connection, "SELECT name, ctid, xmin FROM magik_job_schedules ORDER BY name")
    assert [row.name for row in before] == ["integration.Hourly", "integration.Hourly:b"]
    write(entry(name="b"), MINE)
    assert ask(connection, "SELECT name, ctid, xmin FROM magik_job_schedules ORDER BY name") == before


def test_a_changed_declaration_begins_anew_and_keeps_its_pause(
    connection: Connection, write: Callable[..., None]
) -> None:
    write(MINE)
    ask(connection, "UPDATE magik_job_schedules SET paused_at = now(), paused_by = 'ada', last_run_at = now()")
    write(entry(EVERY_TWO))
    ((every, ahead, *kept),) = ask(
        connection,
        "SELECT declaration->>'every', next_run_at - now() > interval '119 min', paused_at, paused_by, last_run_at"
        " FROM magik_job_schedules",
    )
    assert (every, ahead) == ("2h", True)
    assert None not in kept


def test_rows_of_known_classes_go_with_their_declaration_and_others_stay(
    connection: Connection, write: Callable[..., None]
) -> None:
    write(MINE, entry(name="b"))
    ask(connection, "INSERT INTO magik_job_schedules VALUES ('theirs', 'Theirs', '{}', now())")
    write(entry(name="b"))
    assert set(rows(connection)) == {"integration.Hourly:b", "theirs"}
    write()
    assert set(rows(connection)) == {"theirs"}


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "SERIALIZABLE"])
def test_workers_that_start_at_once_write_one_row_each(
    database: str, connection: Connection, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of them in the opposite order, on a row that is changed and many that are new."""
    monkeypatch.setattr(timetable, "BOUND", "SET LOCAL lock_timeout = '60s'")  # they wait for five others, not for one
    timetable.write(connection, KNOWN, table(entry(EVERY_TWO, "n1")), refuse)
    entries = [entry(name=f"n{n}") for n in range(20)]
    barrier, engine = Barrier(6), create_engine(database, pool_size=6, isolation_level=isolation)

    def start(n: int) -> None:
        with engine.connect() as own:
            barrier.wait(10)
            timetable.write(own, KNOWN, table(*entries[:: 1 if n % 2 else -1]), refuse)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(start, range(6)))
    engine.dispose()
    assert {every for every, _ in rows(connection).values()} == {"1h"}
    assert len(rows(connection)) == 20


def test_a_row_that_is_busy_is_not_waited_for(
    engine: Engine, connection: Connection, write: Callable[..., None]
) -> None:
    write(MINE)
    with engine.begin() as busy:
        busy.execute(text("SELECT FROM magik_job_schedules FOR UPDATE"))
        with pytest.raises(Exception, match="lock timeout"):
            write(entry(EVERY_TWO))
    write(entry(EVERY_TWO))
    assert [every for every, _ in rows(connection).values()] == ["2h"]


def test_a_row_that_says_something_else_is_strange_and_adopted_only_as_it_was_seen(
    connection: Connection, write: Callable[..., None]
) -> None:
    write(entry(EVERY_TWO))
    (seen,) = timetable.strange(connection, table(MINE))
    assert (seen.name, seen.said, seen.due) == (MINE.name, '{"every": "2h"}', False)
    due(connection)
    assert not timetable.adopt(connection, MINE, seen)
    (seen,) = timetable.strange(connection, table(MINE))
    assert seen.due
    ask(connection, "UPDATE magik_job_schedules SET paused_at = now()")
    assert not timetable.adopt(connection, MINE, seen)
    ask(connection, "UPDATE magik_job_schedules SET paused_at = NULL")
    before = rows(connection)
    assert timetable.adopt(connection, MINE, seen)
    assert rows(connection) == {MINE.name: ("1h", before[MINE.name][1])}
    assert timetable.strange(connection, table(MINE)) == []
    ask(connection, "TRUNCATE magik_job_schedules")
    assert timetable.strange(connection, table(MINE)) == [(MINE.name, None, None, None, None)]


def test_a_row_at_minus_infinity_is_adopted(driven: Engine) -> None:
    with driven.connect() as connection:
        timetable.write(connection, KNOWN, table(entry(EVERY_TWO)), refuse)
        due(connection, "'-infinity'")
        (seen,) = timetable.strange(connection, table(MINE))
        assert timetable.adopt(connection, MINE, seen)


# ---- ticks


def test_a_tick_is_claimed_once_with_its_job_and_the_next_is_on_the_grid(
    connection: Connection, write: Callable[..., None], sessions: scoped_session[OrmSession]
) -> None:
    write(MINE)
    assert ticks(connection) == []
    due(connection)
    (tick,) = ticks(connection)
    assert tick.seconds == pytest.approx(-5400, abs=60)
    before = rows(connection)[MINE.name][1]
    assert fire(tick, sessions, connection) == 1
    assert fire(tick, sessions, connection) is None
    ((after, last),) = ask(
        connection, "SELECT next_run_at, last_run_at > now() - interval '1 min' FROM magik_job_schedules"
    )
    assert (str(after - before), last) == ("2:00:00", True)
    assert ask(connection, "SELECT job_class, run_at <= now() FROM magik_jobs") == [("integration.Hourly", True)]


@pytest.mark.parametrize(
    "change",
    {
        "moved": "next_run_at = next_run_at + interval '1 microsecond'",
        "not due": "next_run_at = now() + interval '1 h'",
        "paused": "paused_at = now()",
        "changed": """declaration = '{"every": "2h"}'""",
    }.items(),
    ids=lambda change: change[0],
)
def test_a_tick_that_is_not_as_it_was_seen_is_not_claimed(
    connection: Connection, write: Callable[..., None], sessions: scoped_session[OrmSession], change: tuple[str, str]
) -> None:
    write(MINE)
    due(connection)
    (tick,) = ticks(connection)
    ask(connection, f"UPDATE magik_job_schedules SET {change[1]}")
    assert fire(tick, sessions, connection) is None
    assert ask(connection, "SELECT FROM magik_jobs") == []


def test_what_was_computed_before_a_long_freeze_is_not_claimed(
    connection: Connection, write: Callable[..., None], sessions: scoped_session[OrmSession]
) -> None:
    """Seen two hours ago, so that the tick after it lies in the past: the claim would leave the schedule due."""
    write(MINE)
    due(connection)
    (tick,) = ticks(connection)
    frozen = tick._replace(now=tick.at)
    assert frozen.following() < moment(tick.now)
    assert fire(frozen, sessions, connection) is None
    assert fire(tick, sessions, connection) == 1


def test_a_schedule_that_another_worker_is_busy_with_is_passed_over(
    engine: Engine, connection: Connection, write: Callable[..., None], sessions: scoped_session[OrmSession]
) -> None:
    write(MINE)
    due(connection)
    (tick,) = ticks(connection)
    with engine.begin() as busy:
        busy.execute(text("SELECT FROM magik_job_schedules FOR UPDATE"))
        assert fire(tick, sessions, connection) is None


def test_a_schedule_that_fails_leaves_its_tick(
    connection: Connection,
    write: Callable[..., None],
    sessions: scoped_session[OrmSession],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(session: OrmSession) -> Iterator[Job]:
        session.add(Hourly())
        session.flush()
        yield Hourly()
        raise KeyboardInterrupt

    monkeypatch.setattr(Hourly, "on_schedule", fail)
    write(MINE)
    due(connection)
    (tick,) = ticks(connection)
    with pytest.raises(ScheduleFailed) as caught:
        fire(tick, sessions, connection)
    assert isinstance(caught.value.__cause__, KeyboardInterrupt)
    assert [left.at for left in ticks(connection)] == [tick.at]
    assert ask(connection, "SELECT FROM magik_jobs") == []


@pytest.mark.parametrize("below", [False, True])
def test_an_on_schedule_that_commits_keeps_neither_its_tick_nor_half_of_its_jobs(
    connection: Connection,
    write: Callable[..., None],
    sessions: scoped_session[OrmSession],
    monkeypatch: pytest.MonkeyPatch,
    below: bool,
) -> None:
    """The Session, or the Connection below it."""

    def commit(session: OrmSession) -> Iterator[Job]:
        with session.begin_nested():
            yield Hourly()
        (session.connection() if below else session).commit()
        yield Hourly()

    monkeypatch.setattr(Hourly, "on_schedule", commit)
    write(MINE)
    due(connection)
    (tick,) = ticks(connection)
    with pytest.raises(ScheduleFailed) as caught:
        fire(tick, sessions, connection)
    assert "MAGIK_ON_SCHEDULE_INVALID" in str(caught.value.__cause__)
    assert [left.at for left in ticks(connection)] == [tick.at]
    assert ask(connection, "SELECT FROM magik_jobs") == []


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("where", ["in the claim", "in on_schedule"])
def test_a_serialization_failure_is_no_fault_of_the_schedule(
    engine: Engine, database: str, driver: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another transaction comes between the snapshot and what this one writes."""
    url = make_url(database).set(drivername=f"postgresql+{driver}")
    own = create_engine(url, isolation_level="SERIALIZABLE")
    sessions = for_runs(scoped_session(sessionmaker(own)))
    with engine.begin() as setup:
        setup.execute(text("CREATE TABLE counted AS SELECT 1 AS n"))

    def come_between(connection: Connection, table: str, change: str) -> None:
        connection.execute(text(f"SELECT FROM {table}"))
        with engine.begin() as other:
            other.execute(text(f"UPDATE {table} SET {change}"))

    def claim(_: OrmSession, __: Any, connection: Connection) -> None:
        come_between(connection, "magik_job_schedules", "last_run_at = now()")

    def count(session: OrmSession) -> Iterator[Job]:
        come_between(session.connection(), "counted", "n = n + 1")
        session.execute(text("UPDATE counted SET n = n + 1"))
        yield Hourly()

    if where == "in on_schedule":
        monkeypatch.setattr(Hourly, "on_schedule", count)
    else:
        event.listen(sessions, "after_begin", claim)
    with own.connect() as connection:
        timetable.write(connection, KNOWN, table(MINE), refuse)
        due(connection)
        (tick,) = ticks(connection)
        with pytest.raises(Contended):
            fire(tick, sessions, connection)
        assert [left.at for left in ticks(connection)] == [tick.at]
    own.dispose()


def test_moments_that_no_schedule_writes_hurt_nobody(driven: Engine) -> None:
    """Whoever keeps a schedule off by 'infinity', or hurries it by '-infinity' or a year before Christ."""
    with driven.connect() as connection:
        hurry(connection, for_runs(scoped_session(sessionmaker(driven))))


def hurry(connection: Connection, sessions: scoped_session[OrmSession]) -> None:
    entries = [entry(name=name) for name in ("a", "b", "c", "d")]
    timetable.write(connection, KNOWN, table(*entries), refuse)
    for name, moment_ in {"a": "infinity", "b": "-infinity", "c": "4000-01-01 BC", "d": "now"}.items():
        where = {"name": f"{MINE.name}:{name}", "at": moment_}
        ask(
            connection,
            "UPDATE magik_job_schedules SET next_run_at = CAST(:at AS timestamptz) WHERE name = :name",
            **where,
        )
    found = ticks(connection, *entries)
    assert [tick.entry.name[-1] for tick in found] == ["b", "c", "d"]
    assert [fire(tick, sessions, connection) for tick in found] == [1, 1, 1]
    later = "SELECT name FROM magik_job_schedules WHERE next_run_at > now() AND next_run_at <= now() + interval '1 h'"
    assert len(ask(connection, later)) == 3
    assert moment("-Infinity") == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize(
    "setting", ["DateStyle=German", "TimeZone=Asia/Kathmandu", "default_transaction_isolation=serializable"]
)
def test_the_sessions_settings_change_nothing(database: str, driver: str, setting: str) -> None:
    name, value = setting.split("=")
    url = make_url(database).set(drivername=f"postgresql+{driver}")
    engine = create_engine(url, connect_args={"options": f"-c {name}={value}"})
    sessions = for_runs(scoped_session(sessionmaker(engine)))
    with engine.connect() as connection:
        timetable.write(connection, KNOWN, table(MINE), refuse)
        due(connection, "'2026-10-25 00:30:00.123456+00'")
        (tick,) = ticks(connection)
        assert tick.moment == datetime(2026, 10, 25, 0, 30, 0, 123456, tzinfo=UTC)
        assert fire(tick, sessions, connection) == 1
        ((on_grid,),) = ask(connection, "SELECT extract(epoch FROM next_run_at) % 3600 FROM magik_job_schedules")
        assert on_grid == Decimal("1800.123456")
    engine.dispose()


@pytest.mark.parametrize("loader", [FloatLoader, TextLoader])
def test_the_application_reads_numbers_as_it_likes(database: str, loader: type[Loader]) -> None:
    engine = create_engine(database)
    event.listen(engine, "connect", lambda dbapi, _: dbapi.adapters.register_loader("numeric", loader))
    sessions = for_runs(scoped_session(sessionmaker(engine)))
    with engine.connect() as connection:
        timetable.write(connection, KNOWN, table(MINE), refuse)
        due(connection)
        (tick,) = ticks(connection)
        assert fire(tick, sessions, connection) == 1
        with connection.begin():
            assert recurring.pause(connection, MINE.name, "ada")
            assert recurring.resume(connection, MINE.name)
    engine.dispose()


# ---- by hand


def test_a_resumed_schedule_keeps_a_tick_that_is_to_come(connection: Connection, write: Callable[..., None]) -> None:
    write(MINE)
    before = rows(connection)
    with connection.begin():
        assert recurring.pause(connection, MINE.name, "ada")
        assert recurring.resume(connection, MINE.name)
    assert rows(connection) == before


@pytest.mark.parametrize("elsewhere", [False, True], ids=["no default", "another default"])
def test_a_schedule_is_paused_where_the_jobs_are(
    engine: Engine, connection: Connection, write: Callable[..., None], empty_database: str, elsewhere: bool
) -> None:
    write(MINE)
    default = create_engine(empty_database) if elsewhere else None
    factory = scoped_session(sessionmaker(default, binds={Job: engine}))
    with factory() as session, session.begin():
        assert recurring.pause(session, MINE.name, "ada")
        assert recurring.resume(factory, MINE.name)
    if default is not None:
        default.dispose()


@pytest.mark.parametrize("at", ["-infinity", "infinity"])
def test_a_resumed_schedule_has_a_tick_whatever_was_written(
    connection: Connection, write: Callable[..., None], at: str
) -> None:
    write(MINE)
    due(connection, f"'{at}'")
    with connection.begin():
        recurring.pause(connection, MINE.name, "ada")
        assert recurring.resume(connection, MINE.name)
    assert ticks(connection) == []


def test_a_schedule_that_there_is_not_is_neither_paused_nor_resumed(
    connection: Connection, write: Callable[..., None]
) -> None:
    write(MINE)
    with connection.begin():
        asking: list[Callable[[str], bool]] = [
            lambda name: recurring.pause(connection, name, by="ada"),
            lambda name: recurring.resume(connection, name),
        ]
        for asked in asking:
            with pytest.raises(EnqueueError, match="MAGIK_SCHEDULE_UNKNOWN") as unknown:
                asked(MINE.name[:-1])
            assert unknown.value.what == f"There is no schedule {MINE.name[:-1]!r}; did you mean {MINE.name!r}?"
            with pytest.raises(EnqueueError, match="There is no schedule 'xyz'[.] "):
                asked("xyz")
        assert not recurring.resume(connection, MINE.name)
        assert recurring.pause(connection, MINE.name, by="ada")
        assert not recurring.pause(connection, MINE.name, by="eve")


@pytest.mark.parametrize("by", [None, "", 5, "a\0", "é" * 128])
def test_who_pauses_a_schedule_says_so_in_text(connection: Connection, write: Callable[..., None], by: Any) -> None:
    write(MINE)
    with connection.begin(), pytest.raises(EnqueueError, match="MAGIK_ARGS_INVALID: by: "):
        recurring.pause(connection, MINE.name, by)
    with connection.begin():
        assert recurring.pause(connection, MINE.name, "ada"), "nothing was changed"
