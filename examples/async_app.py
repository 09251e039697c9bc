"""An application on asyncio and asyncpg: its AsyncSession enqueues; jobs run in threads, on psycopg.

python -m examples.async_app 1 2 3
python -m magik_sa.worker examples.async_app
"""

from __future__ import annotations

import asyncio
import os
import sys

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from magik_sa import Job, arg


class Base(DeclarativeBase):
    """The application's own tables."""


class Order(Base):
    """What somebody ordered."""

    __tablename__ = "async_orders"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    receipts: Mapped[int] = mapped_column(default=0)


class SendReceipt(Job, policy="system"):
    """Sends a receipt for an order. `perform` is an ordinary function: what it calls may wait."""

    number: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        session.get_one(Order, self.number).receipts += 1


async def place(session: AsyncSession, number: int) -> None:
    """Place an order; each task has a Session of its own."""
    async with session.begin():
        session.add(Order(number=number))
        session.add(SendReceipt(number=number))


async def main(*numbers: int) -> None:
    """Place some orders at once."""
    engine = create_async_engine(make_url(os.environ["MAGIK_DATABASE_URL"]).set(drivername="postgresql+asyncpg"))
    sessions = async_sessionmaker(engine)
    async with asyncio.TaskGroup() as tasks:
        for number in numbers:
            tasks.create_task(closing(sessions(), number))
    await engine.dispose()


async def closing(session: AsyncSession, number: int) -> None:
    """Place one order and close the Session."""
    async with session:
        await place(session, number)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
