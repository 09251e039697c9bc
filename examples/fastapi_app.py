"""FastAPI: a Session for each request, and jobs that are committed with what the request wrote.

uvicorn examples.fastapi_app:app
python -m magik_sa.worker examples.fastapi_app --session examples.fastapi_app:Sessions
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from fastapi import Depends, FastAPI
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from magik_sa import Job, arg

url = make_url(os.environ["MAGIK_DATABASE_URL"])
engine = create_engine(url, pool_size=10)
async_engine = create_async_engine(url.set(drivername="postgresql+asyncpg"))
Sessions = sessionmaker(engine)
AsyncSessions = async_sessionmaker(async_engine)


class Base(DeclarativeBase):
    """The application's own tables."""


class Order(Base):
    """What somebody ordered."""

    __tablename__ = "fastapi_orders"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    receipts: Mapped[int] = mapped_column(default=0)


class SendReceipt(Job, policy="system"):
    """Sends one receipt for an order, however often the order was placed meanwhile."""

    idempotent_by = "number"
    number: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        session.get_one(Order, self.number).receipts += 1


def session() -> Iterator[Session]:
    """The request's Session. What is not committed when the request ends is rolled back."""
    with Sessions() as session:
        yield session


async def async_session() -> AsyncIterator[AsyncSession]:
    """The same for endpoints that are coroutines."""
    async with AsyncSessions() as session:
        yield session


app = FastAPI()


@app.post("/orders/{number}")
def place(number: int, session: Annotated[Session, Depends(session)]) -> dict[str, bool]:
    """Place an order. Commit here: what stands behind a dependency's yield may run after the answer was sent."""
    job = SendReceipt(number=number)
    session.add_all([Order(number=number), job])
    session.commit()
    return {"is_repeat": job.is_repeat}


@app.post("/async/orders/{number}")
async def place_async(number: int, session: Annotated[AsyncSession, Depends(async_session)]) -> dict[str, bool]:
    """The same in a coroutine."""
    job = SendReceipt(number=number)
    session.add_all([Order(number=number), job])
    await session.commit()
    return {"is_repeat": job.is_repeat}
