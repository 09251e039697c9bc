"""Many callers at once, one Session each: every job is there. One Session shared by many: loud, or done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
def test_threads_that_share_a_session_are_told(engine: Engine) -> None:
    with on(engine, "psycopg") as many:
        committed = [number for turn in range(20) for number in _shared(many, turn)]
    assert set(committed) <= set(there(engine))


def _shared(engine: Engine, turn: int) -> list[int]:
    """Five threads add and commit through one Session at once; whom it told that all is well."""
    barrier = threading.Barrier(5)
    with Session(engine) as session, ThreadPoolExecutor(5) as threads:
        call = _caller(session, barrier)
        told = list(threads.map(call, range(turn * 5, turn * 5 + 5)))
    return [number for number in told if number is not None]


def _caller(session: Session, barrier: threading.Barrier) -> Callable[[int], int | None]:
    def call(number: int) -> int | None:
        barrier.wait()
        try:
            session.add(Called(number=number))
            session.commit()
        except SQLAlchemyError:
            return None
        return number

    return call
