"""Only aware times enter, and neither TZ nor the server's TimeZone changes what they mean."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import create_engine, func, select, text
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import sessionmaker

from magik_sa import EnqueueError
from tests.jobs.moments import Reminding
from tests.tools.effects import Effects
from tests.tools.server import Server
from tests.tools.waiting import never, until
from tests.tools.workers import WorkerProcess

Sessions = sessionmaker[OrmSession]

PAIRS = [
    ("UTC", "UTC"),
    ("America/New_York", "Asia/Kolkata"),
    ("Asia/Kolkata", "America/St_Johns"),
    ("Pacific/Auckland", "Europe/Paris"),
]
AT = datetime(2031, 3, 4, 5, 6, 7, 890123, tzinfo=UTC)
AWARE = {
    "UTC": AT,
    "Kolkata": AT.astimezone(ZoneInfo("Asia/Kolkata")),
    "the second 02:30 of a night": datetime(2031, 10, 26, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Paris")),
}
NAIVE = [
    ("run_at", AT.replace(tzinfo=None)),
    ("run_at", AT.date()),
    ("run_at", AT.isoformat()),  # an argument, whose type is the class's own, is read from such text by pydantic
    ("at", AT.replace(tzinfo=None)),
    ("at", AT.date()),
    ("at", "2031-03-04T05:06:07"),
]


@pytest.fixture(scope="module")
def url(server: Server, template: str) -> Iterator[str]:
    """One database for all of these."""
    with server.created(template) as name:
        yield server.url(name)


@pytest.fixture(params=PAIRS, ids=[f"TZ={process} TimeZone={server}" for process, server in PAIRS])
def sessions(request: pytest.FixtureRequest, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sessions]:
    """Sessions of a process in one zone, on connections whose TimeZone is another."""
    process, server = request.param
    monkeypatch.setenv("TZ", process)
    time.tzset()
    engine = create_engine(url, connect_args={"options": f"-c TimeZone={server}"})
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE magik_jobs"))
    yield sessionmaker(engine)
    engine.dispose()
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("moment", AWARE.values(), ids=AWARE)
def test_an_aware_time_keeps_its_instant(sessions: Sessions, moment: datetime) -> None:
    with sessions.begin() as session:
        session.add(job := Reminding(at=moment, run_at=moment))
    with sessions() as session:
        stored, argument = session.execute(
            text("SELECT extract(epoch FROM run_at), extract(epoch FROM (args ->> 'at')::timestamptz) FROM magik_jobs")
        ).one()
        assert float(stored) == float(argument) == moment.timestamp()
        back = session.get_one(Reminding, job.id)
        assert back.run_at.astimezone(UTC) == back.at.astimezone(UTC) == moment.astimezone(UTC)
        same = select(Reminding.id).where(Reminding.at == moment, Reminding.run_at == moment)
        assert session.scalars(same).all() == [job.id]


@pytest.mark.parametrize(("field", "value"), NAIVE, ids=[f"{field} {type(value).__name__}" for field, value in NAIVE])
def test_a_time_without_a_zone_is_refused_by_its_name(sessions: Sessions, value: Any, field: str) -> None:
    with sessions() as session:
        with pytest.raises(EnqueueError) as refused:
            session.add(Reminding(**{"at": AT, "run_at": AT, field: value}))
        assert (refused.value.code, refused.value.field) == ("MAGIK_ARGS_INVALID", field)
        session.commit()
        assert session.scalar(select(func.count()).select_from(Reminding)) == 0


def test_one_instant_told_in_two_zones_is_one_key(sessions: Sessions) -> None:
    with sessions.begin() as session:
        session.add_all([first := Reminding(at=AWARE["UTC"]), second := Reminding(at=AWARE["Kolkata"])])
        session.flush()
        assert {first.is_repeat, second.is_repeat} == {False, True}


def test_a_delay_is_counted_from_the_clock_of_the_database(sessions: Sessions) -> None:
    with sessions.begin() as session:
        session.add(Reminding(at=AT, delay="10m"))
    with sessions() as session:
        wait = session.scalar(text("SELECT run_at - enqueued_at FROM magik_jobs"))
        assert wait == timedelta(minutes=10)


def test_a_day_is_stored_as_itself(sessions: Sessions) -> None:
    with sessions.begin() as session:
        session.add(job := Reminding(at=AT, day=date(2031, 12, 31)))
    with sessions() as session:
        assert session.scalars(select(Reminding.id).where(Reminding.day == date(2031, 12, 31))).all() == [job.id]
        assert session.get_one(Reminding, job.id).day == date(2031, 12, 31)


def set_timezone(dsn: str, zone: str) -> None:
    """The TimeZone of new sessions of this database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET timezone TO {}").format(name, zone))


def test_a_worker_in_another_zone_starts_jobs_when_they_are_due(database: str, dsn: str, effects: Effects) -> None:
    set_timezone(dsn, "America/St_Johns")
    engine = create_engine(database)
    with WorkerProcess(database, "tests.jobs.moments", env={"TZ": "Asia/Kolkata"}, poll_interval="1s") as worker:
        worker.wait_ready()
        now = datetime.now(ZoneInfo("Pacific/Auckland"))
        with OrmSession(engine) as session, session.begin():
            session.add(soon := Reminding(at=now, run_at=now + timedelta(seconds=1)))
            session.add(Reminding(at=now + timedelta(hours=1), run_at=now + timedelta(hours=1)))
        until(effects.count, what="the job that is due runs")
        never(lambda: effects.count() != 1, during=0.5, what="the other one runs")
    engine.dispose()
    (effect,) = effects.rows()
    assert effect.job_id == soon.id
    assert effect.started >= now + timedelta(seconds=1)
