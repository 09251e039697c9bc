"""Job classes with tables of their own, beside and below tables of the application."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Engine, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from magik_sa import Job, Retries, arg


class Base(DeclarativeBase):
    """The application's own tables."""


class Customer(Base):
    """Somebody whom a job is about."""

    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    letters: Mapped[int] = mapped_column(default=0)


class Letter(Job, policy="system", queue="letters"):
    """Has an argument, columns of its own, and a relationship to a table of the application."""

    __tablename__ = "letters"
    retries = Retries(times=1, backoff="constant", base="1ms", jitter=0)

    id: Mapped[UUID] = mapped_column(ForeignKey(Job.id, ondelete="CASCADE"), primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey(Customer.id))
    subject: Mapped[str]
    sent: Mapped[int] = mapped_column(default=0)
    customer: Mapped[Customer] = relationship(Customer)
    fails: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        self.customer.letters += len(self.subject)
        self.sent += 1
        session.commit()
        self.customer.letters += 1000 * self.sent
        if self.error_count < self.fails:
            raise ValueError(self.subject)


class Registered(Letter, policy="system", queue="letters"):
    """Inherits the table; its finished rows stay."""

    keep = "1d"


class Pigeon(Letter, policy="system"):
    """Inherits the table, and takes no Session."""

    def perform(self) -> None:  # type: ignore[override]
        self.customer.letters += len(self.subject)


def make(engine: Engine) -> None:
    """The application's tables, and those of the job classes."""
    Base.metadata.create_all(engine)
    Letter.__table__.create(engine)
