"""Many callers at once, one Session each: every job is there. One Session shared by many: no row is spoilt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Mapped, Session, scoped_session, sessionmaker

from magik_sa import Job, arg

CALLERS, EACH = 20, 25
EXPECTED = sorted(range(CALLERS * EACH))


class Called(Job, policy="system", queue="called"):
    """A job with a key, so that each flush also asks for repeats."""

    idempotent_by = "number"
    number: Mapped[int] = arg()

    def perform(self, session: Session) -> None: ...


def there(engine: Engine) -> list[int]:
    with Session(engine) as session:
        return sorted(session.scalars(select(Called.number)))


def numbers(caller: int) -> range:
    return range(caller * EACH, (caller + 1) * EACH)


@contextmanager
def on(engine: Engine, driver: str) -> Iterator[Engine]:
    """An engine with a connection for every caller."""
    made = create_engine(engine.url.set(drivername=f"postgresql+{driver}"), pool_size=CALLERS)
    yield made
    made.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_threads_with_a_scoped_session(engine: Engine, driver: str) -> None:
    with on(engine, driver) as many, ThreadPoolExecutor(CALLERS) as threads:
        sessions = scoped_session(sessionmaker(many))

        def call(caller: int) -> None:
            for number in numbers(caller):
                sessions.add(Called(number=number))
                sessions.commit()
            sessions.remove()

        list(threads.map(call, range(CALLERS)))
    assert there(engine) == EXPECTED


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("scoped", [False, True])
def test_tasks_with_asynchronous_sessions(engine: Engine, driver: str, scoped: bool) -> None:
    async def main() -> None:
        many = create_async_engine(engine.url.set(drivername=f"postgresql+{driver}"), pool_size=CALLERS)
        maker = async_sessionmaker(many)
        registry = async_scoped_session(maker, scopefunc=asyncio.current_task)

        async def call(caller: int) -> None:
            session: Any = registry if scoped else maker()
            for number in numbers(caller):
                session.add(Called(number=number))
                await session.commit()
            await (registry.remove() if scoped else session.close())

        async with asyncio.TaskGroup() as tasks:
            for caller in range(CALLERS):
                tasks.create_task(call(caller))
        await many.dispose()

    asyncio.run(main())
    assert there(engine) == EXPECTED


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
def test_tasks_that_share_a_session_are_told(engine: Engine) -> None:
    async def main() -> list[int]:
        one = create_async_engine(engine.url.set(drivername="postgresql+asyncpg"))
        told = []
        for turn in range(20):
            async with AsyncSession(one) as session:
                told += await asyncio.gather(*(call(session, turn * 5 + n) for n in range(5)))
        await one.dispose()
        return [number for number in told if number is not None]

    async def call(session: AsyncSession, number: int) -> int | None:
        try:
            session.add(Called(number=number))
            await session.commit()
        except SQLAlchemyError:
            return None
        return number

    committed = asyncio.run(main())
    assert set(committed) <= set(there(engine))
    assert len(committed) < 100


@pytest.mark.filterwarnings("ignore")
def test_threads_that_share_a_session_leave_whole_rows_or_none(engine: Engine) -> None:
    """More is not to be had: SQLAlchemy may then lose what it said was committed, whatever class it is of."""
    for turn in range(20):
        with on(engine, "psycopg") as many, suppress(Exception):
            share(many, turn)
    with Session(engine) as session:
        jobs = session.scalars(select(Called)).all()
        again = [Called(number=job.number) for job in jobs]
        session.add_all(again)
        session.flush()
        assert [job.repeat_of for job in again] == [job.id for job in jobs], "each has the key of its own number"
        assert {job.number for job in jobs} <= set(range(100))


def share(engine: Engine, turn: int) -> None:
    """Five threads add and commit through one Session at once."""
    barrier = threading.Barrier(5)

    def call(number: int) -> None:
        barrier.wait()
        with suppress(Exception):
            session.add(Called(number=number))
            session.commit()

    with Session(engine) as session, ThreadPoolExecutor(5) as threads:
        list(threads.map(call, range(turn * 5, turn * 5 + 5)))
