"""Every kind of Session is a door for jobs: the same promises hold behind each of them.

Each test is written once, for synchronous and asynchronous Sessions alike: `done` awaits what has to be awaited.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import flask
import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, create_engine, delete, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Mapped, Session, scoped_session, sessionmaker
from sqlmodel import Session as ModelSession
from sqlmodel.ext.asyncio.session import AsyncSession as ModelAsyncSession

from magik_sa import EnqueueError, Job, arg, bulk_enqueue, once

# SQLModel would rather see exec() used, and says so of every execute().
pytestmark = pytest.mark.filterwarnings(r"ignore:[\s\S]*You probably want to use:DeprecationWarning")


class Charge(Job, policy="system", queue="doors"):
    """A keyed job with a list and a secret."""

    idempotent_by = "number"
    number: Mapped[int] = arg()
    lines: Mapped[list[str]] = arg(default_factory=list)
    card: Mapped[str] = arg(default="", sensitive=True)

    def perform(self, session: Session) -> None: ...


REFUSING = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no such card'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON magik_jobs FOR EACH ROW WHEN (new.args->>'card' <> '') EXECUTE FUNCTION refuse()
"""

Open = Callable[[], Any]  # a context manager that gives a Session and closes it
DOORS: dict[str, Callable[[Any, AsyncExitStack], Open]] = {}


def door(driver: str) -> Callable[[Callable[[Any], Open]], Callable[[Any], Open]]:
    """Register a way to open Sessions on an engine of `driver`; the engine is disposed at the end."""

    def register(opening: Callable[[Any], Open]) -> Callable[[Any], Open]:
        def prepared(url: Any, stack: AsyncExitStack) -> Open:
            url = url.set(drivername=f"postgresql+{driver.removesuffix(' async')}")
            if driver.endswith("async") or driver == "asyncpg":
                engine: Any = create_async_engine(url)
                stack.push_async_callback(engine.dispose)
            else:
                engine = create_engine(url)
                stack.callback(engine.dispose)
            return opening(engine)

        DOORS[f"{opening.__name__} on {driver}"] = prepared
        return opening

    return register


@door("psycopg")
@door("psycopg2")
def session(engine: Engine) -> Open:
    return sessionmaker(engine)


@door("psycopg2")
def scoped(engine: Engine) -> Open:
    sessions = scoped_session(sessionmaker(engine))

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        yield sessions
        sessions.remove()

    return opened


@door("psycopg async")
@door("asyncpg")
def async_session(engine: AsyncEngine) -> Open:
    return async_sessionmaker(engine)


@door("asyncpg")
def async_scoped(engine: AsyncEngine) -> Open:
    sessions = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        yield sessions
        await sessions.remove()

    return opened


@door("psycopg")
def sqlmodel_session(engine: Engine) -> Open:
    return lambda: ModelSession(engine)


@door("asyncpg")
def sqlmodel_async_session(engine: AsyncEngine) -> Open:
    return lambda: ModelAsyncSession(engine)


@door("psycopg")
def flask_session(engine: Engine) -> Open:
    app, db = flask.Flask(__name__), SQLAlchemy()
    app.config["SQLALCHEMY_DATABASE_URI"] = engine.url.render_as_string(hide_password=False)
    db.init_app(app)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        with app.app_context():
            try:
                yield db.session
            finally:
                db.session.remove()
                db.engine.dispose()

    return opened


async def done(result: Any) -> Any:
    """What an asynchronous Session does has to be awaited."""
    return await result if inspect.isawaitable(result) else result


Test = Callable[[Open, Engine], Awaitable[None]]


def through_every_door(test: Test) -> Any:
    """Run the test with Sessions of each kind."""

    async def run(name: str, engine: Engine) -> None:
        async with AsyncExitStack() as stack:
            await test(_entered(DOORS[name](engine.url, stack)), engine)

    @pytest.mark.parametrize("name", DOORS)
    def tested(name: str, engine: Engine) -> None:
        asyncio.run(run(name, engine))

    return tested


def _entered(opening: Open) -> Open:
    """One form of block for both kinds of context managers."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            context = opening()
            if hasattr(context, "__aenter__"):
                yield await stack.enter_async_context(context)
            else:
                yield stack.enter_context(context)

    return opened


def numbers(engine: Engine) -> list[int]:
    """The numbers of the jobs that are there, seen from outside."""
    with Session(engine) as session:
        return sorted(session.scalars(select(Charge.number)))


@through_every_door
async def test_a_job_is_there_once_its_transaction_has_committed(opened: Open, engine: Engine) -> None:
    async with opened() as session:
        job = Charge(number=1, lines=["a"])
        session.add(job)
        assert isinstance(job.id, UUID)
        await done(session.flush())
        assert numbers(engine) == []
        await done(session.commit())
        assert numbers(engine) == [1]
        assert (job.number, job.lines, job.queue) == (1, ["a"], "doors")


@through_every_door
async def test_a_job_stays_readable_when_a_worker_has_deleted_it(opened: Open, engine: Engine) -> None:
    async with opened() as session:
        job = Charge(number=1)
        session.add(job)
        await done(session.commit())
        with engine.begin() as other:
            other.execute(delete(Job.__table__))
        assert (job.number, job.is_repeat, job.repeat_of) == (1, False, None)  # no SQL


@through_every_door
async def test_a_rollback_takes_the_job_along(opened: Open, engine: Engine) -> None:
    async with opened() as session:
        session.add(Charge(number=1))
        await done(session.flush())
        await done(session.rollback())
        session.add(Charge(number=2))
        await done(session.commit())
    assert numbers(engine) == [2]


@through_every_door
async def test_a_savepoint_takes_its_job_along(opened: Open, engine: Engine) -> None:
    async with opened() as session:
        session.add(Charge(number=1))
        savepoint = session.begin_nested()
        savepoint = await done(savepoint)
        session.add(Charge(number=2))
        await done(session.flush())
        await done(savepoint.rollback())
        await done(session.commit())
    assert numbers(engine) == [1]


@through_every_door
async def test_a_repeat_leaves_the_transaction_whole(opened: Open, engine: Engine) -> None:
    first = Charge(number=1)
    async with opened() as session:
        session.add(first)
        await done(session.commit())
    async with opened() as session:
        repeat, other = Charge(number=1, lines=["again"]), Charge(number=2)
        session.add_all([repeat, other])
        await done(session.flush())
        assert (repeat.is_repeat, repeat.repeat_of, other.is_repeat) == (True, first.id, False)
        assert repeat not in session
        await done(session.commit())
        assert (repeat.number, repeat.is_repeat) == (1, True)
    assert numbers(engine) == [1, 2]


@through_every_door
async def test_a_delay_is_counted_from_the_clock_of_the_database(opened: Open, engine: Engine) -> None:
    async with opened() as session:
        session.add(Charge(number=1, delay="10m"))
        session.add(Charge(number=2, run_at=datetime(2031, 1, 1, tzinfo=UTC)))
        await done(session.commit())
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT run_at - enqueued_at AS wait, run_at FROM magik_jobs ORDER BY args->>'number'")
        ).all()
    assert (found[0].wait, found[1].run_at) == (timedelta(minutes=10), datetime(2031, 1, 1, tzinfo=UTC))


@through_every_door
async def test_what_is_changed_in_place_is_written(opened: Open, engine: Engine) -> None:
    async with opened() as session:
        session.add(Charge(number=1, lines=["a"]))
        await done(session.commit())
    async with opened() as session:
        job = (await done(session.scalars(select(Charge).where(Charge.number == 1)))).one()
        job.lines.append("b")
        await done(session.commit())
        assert job.lines == ["a", "b"]
    with Session(engine) as reader:
        assert reader.scalars(select(Charge)).one().lines == ["a", "b"]


@through_every_door
async def test_a_secret_is_not_shown_by_an_error_of_the_database(opened: Open, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text(REFUSING))
    async with opened() as session:
        session.add_all([Charge(number=1), Charge(number=2, card="4111")])
        with pytest.raises(DBAPIError) as refused:
            await done(session.commit())
        await done(session.rollback())
        assert "no such card" in str(refused.value)
        assert "4111" not in str(refused.value) + repr(refused.value.params) + repr(refused.value.orig)
        session.add(Charge(number=3))
        await done(session.commit())
    assert numbers(engine) == [3]


@through_every_door
async def test_a_refused_argument_is_refused_before_any_sql(opened: Open, engine: Engine) -> None:
    async with opened() as session:
        job = Charge(number=1)
        session.add(job)
        job.lines.append("\0")
        with pytest.raises(EnqueueError, match=r"MAGIK_ARGS_INVALID.*lines"):
            await done(session.commit())
        await done(session.rollback())
    assert numbers(engine) == []


@through_every_door
async def test_many_keys_at_once_with_repeats_among_them(opened: Open, engine: Engine) -> None:
    async with opened() as session:
        jobs = [Charge(number=number % 150) for number in range(300)]
        session.add_all(jobs)
        await done(session.commit())
        assert [job.is_repeat for job in jobs].count(True) == 150
        assert {job.repeat_of for job in jobs if job.is_repeat} == {job.id for job in jobs if not job.is_repeat}
    assert numbers(engine) == list(range(150))


@through_every_door
async def test_a_job_can_be_cancelled_and_counted(opened: Open, engine: Engine) -> None:
    async with opened() as session:
        session.add_all([Charge(number=number) for number in range(3)])
        await done(session.commit())
        await done(session.execute(delete(Charge).where(Charge.number == 1)))
        assert await done(session.scalar(select(func.count()).select_from(Charge))) == 2
        job = await done(session.get(Charge, (await done(session.scalars(select(Charge.id)))).first()))
        await done(session.delete(job))
        await done(session.commit())
    assert len(numbers(engine)) == 1


@through_every_door
async def test_a_job_that_is_not_there_is_none(opened: Open, engine: Engine) -> None:
    async with opened() as session:
        assert await done(session.get(Charge, uuid4())) is None


# ---- many at once, and what happens once


async def called(function: Any, session: Any, *args: Any, **options: Any) -> Any:
    """Call what takes a Session with the Session of any door."""
    plain = session() if isinstance(session, async_scoped_session) else session
    if hasattr(plain, "run_sync"):
        return await plain.run_sync(function, *args, **options)
    return function(plain, *args, **options)


@through_every_door
async def test_many_at_once_are_there_once_their_transaction_has_committed(opened: Open, engine: Engine) -> None:
    async with opened() as session:
        jobs = [Charge(number=number, lines=["a"], card="4111") for number in range(3)]
        assert await called(bulk_enqueue, session, jobs) == 3
        assert numbers(engine) == []
        await done(session.commit())
        assert numbers(engine) == [0, 1, 2]
        found = (await done(session.scalars(select(Charge).where(Charge.number == 1)))).one()
        assert (found.id, found.lines, found.card, found.queue) == (jobs[1].id, ["a"], "4111", "doors")


@through_every_door
async def test_a_rollback_takes_many_along(opened: Open, engine: Engine) -> None:
    async with opened() as session:
        await called(bulk_enqueue, session, [Charge(number=1)])
        await done(session.rollback())
        savepoint = session.begin_nested()
        savepoint = await done(savepoint)
        await called(bulk_enqueue, session, [Charge(number=2)])
        await done(savepoint.rollback())
        await called(bulk_enqueue, session, [Charge(number=3)])
        await done(session.commit())
    assert numbers(engine) == [3]


@through_every_door
async def test_repeats_among_many_leave_the_transaction_whole(opened: Open, engine: Engine) -> None:
    first = Charge(number=0)
    async with opened() as session:
        session.add(first)
        await done(session.commit())
    async with opened() as session:
        jobs = [Charge(number=number % 150) for number in range(300)]
        assert await called(bulk_enqueue, session, jobs, wake=False) == 149
        assert (jobs[0].is_repeat, jobs[0].repeat_of, jobs[1].is_repeat) == (True, first.id, False)
        assert {job.repeat_of for job in jobs[151:]} == {job.id for job in jobs[1:150]}
        await done(session.commit())
    assert numbers(engine) == list(range(150))


@through_every_door
async def test_delays_among_many_are_counted_from_the_clock_of_the_database(opened: Open, engine: Engine) -> None:
    async with opened() as session:
        moment = datetime(2031, 1, 1, tzinfo=UTC)
        jobs = [Charge(number=1, delay="10m"), Charge(number=2, run_at=moment), Charge(number=3)]
        jobs.append(Charge(number=4, run_at=func.date_trunc("day", func.now())))
        await called(bulk_enqueue, session, jobs)
        await done(session.commit())
    query = "SELECT run_at - enqueued_at, run_at, run_at = date_trunc('day', enqueued_at) FROM magik_jobs"
    with engine.connect() as connection:
        found = connection.execute(text(f"{query} ORDER BY args->>'number'")).all()
    assert (found[0][0], found[1][1], found[2][0], found[3][2]) == (timedelta(minutes=10), moment, timedelta(0), True)


@through_every_door
async def test_a_secret_among_many_is_not_shown_by_an_error_of_the_database(opened: Open, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text(REFUSING))
    async with opened() as session:
        with pytest.raises(DBAPIError) as refused:
            await called(bulk_enqueue, session, [Charge(number=1), Charge(number=2, card="4111")])
        await done(session.rollback())
        assert "no such card" in str(refused.value)
        assert "4111" not in str(refused.value) + repr(refused.value.params) + repr(refused.value.orig)


@through_every_door
async def test_what_happens_once_is_told_once(opened: Open, engine: Engine) -> None:
    async with opened() as session:
        assert await called(once, session, ["order", 1], scope="mail")
        await done(session.rollback())
        assert await called(once, session, ["order", 1], scope="mail")
        assert await called(once, session, Charge(number=1))
        await done(session.commit())
    async with opened() as session:
        assert not await called(once, session, ["order", 1], scope="mail")
        assert not await called(once, session, Charge(number=1))
        assert await called(once, session, Charge(number=2))
