"""SQLModel: its Session enqueues, and jobs are given one.

python -m examples.sqlmodel_app 1
python -m magik_sa.worker examples.sqlmodel_app --session examples.sqlmodel_app:Sessions
"""

from __future__ import annotations

import os
import sys

from sqlalchemy.orm import Mapped, sessionmaker
from sqlmodel import Field, Session, SQLModel, create_engine, select

from magik_sa import Job, arg

engine = create_engine(os.environ["MAGIK_DATABASE_URL"], pool_size=10)
Sessions = sessionmaker(engine, class_=Session)


class Order(SQLModel, table=True):
    """What somebody ordered."""

    __tablename__ = "sqlmodel_orders"  # pyright: ignore[reportAssignmentType]

    number: int = Field(primary_key=True)
    receipts: int = 0


class SendReceipt(Job, policy="system"):
    """Sends a receipt for an order. A job is no SQLModel: its arguments are declared by arg()."""

    number: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        order = session.exec(select(Order).where(Order.number == self.number)).one()
        order.receipts += 1
        session.add(order)


def place(number: int) -> None:
    """Place an order."""
    with Sessions.begin() as session:
        session.add(Order(number=number))
        session.add(SendReceipt(number=number))


if __name__ == "__main__":
    place(int(sys.argv[1]))
