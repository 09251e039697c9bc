"""The application's tables: who sells, what was ordered, what was paid, the books, and a diary of the run."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from uuid import UUID, uuid4

from sqlalchemy import DateTime, ForeignKey, Identity, Numeric, func
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    """The application's own base; the queue's tables live in a MetaData of their own."""

    type_annotation_map = {Decimal: Numeric(12, 2), datetime: DateTime(timezone=True)}


class Tenant(Base):
    """A shop whose payments we settle."""

    __tablename__ = "tenants"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    name: Mapped[str] = mapped_column(unique=True)
    active: Mapped[bool] = mapped_column(default=True)


class Order(Base):
    """What somebody bought. `settled_at` is set by the transaction that books it."""

    __tablename__ = "orders"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    amount: Mapped[Decimal]
    placed_at: Mapped[datetime] = mapped_column(server_default=func.now())
    settled_at: Mapped[datetime | None]

    tenant: Mapped[Tenant] = relationship()


class Declined(Base):
    """An order that came to nothing, and why: written by the transaction around the savepoint that failed."""

    __tablename__ = "declined"

    order_id: Mapped[UUID] = mapped_column(primary_key=True)
    reason: Mapped[str]


class Payment(Base):
    """Money that the card network has captured for an order."""

    __tablename__ = "payments"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    order_id: Mapped[UUID] = mapped_column(ForeignKey("orders.id"), index=True)
    amount: Mapped[Decimal]
    fee: Mapped[Decimal]
    reference: Mapped[str]
    captured_at: Mapped[datetime] = mapped_column(server_default=func.now())


class LedgerEntry(Base):
    """One booking.

    An application would make `order_id` unique. Here it is not, on purpose: nothing but the queue stands between an
    order and its second booking.
    """

    __tablename__ = "ledger_entries"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    order_id: Mapped[UUID] = mapped_column(ForeignKey("orders.id"), index=True)
    booked_at: Mapped[datetime] = mapped_column(server_default=func.now())

    postings: Mapped[list[Posting]] = relationship()


class Posting(Base):
    """One side of a booking: an amount on an account, either as debit or as credit."""

    __tablename__ = "postings"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    entry_id: Mapped[UUID] = mapped_column(ForeignKey("ledger_entries.id"), index=True)
    account: Mapped[str]
    debit: Mapped[Decimal] = mapped_column(default=Decimal(0))
    credit: Mapped[Decimal] = mapped_column(default=Decimal(0))


class Start(Base):
    """Diary: a worker began a job. Written outside the job's transaction, so that a killed run leaves its trace."""

    __tablename__ = "starts"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    job_id: Mapped[UUID] = mapped_column(index=True)
    order_id: Mapped[UUID] = mapped_column(index=True)
    pid: Mapped[int]
    started_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class Kill(Base):
    """Diary: a worker is killed now."""

    __tablename__ = "kills"

    pid: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    killed_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
