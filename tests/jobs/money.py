"""Transfers between accounts: with and without once() around the booking."""

from __future__ import annotations

from decimal import Decimal

from sqlalchemy import Engine, Numeric, select, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from magik_sa import Job, Retries, arg, once

ACCOUNTS = 8
OPENING = Decimal("1000.00")
MANY = Retries(times=10_000, backoff="constant", base="20ms", jitter=0)


class Bank(DeclarativeBase):
    """The application's own tables."""


class Account(Bank):
    __tablename__ = "accounts"

    number: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[Decimal] = mapped_column(Numeric(14, 2))


class Booking(Bank):
    """One line of the ledger. Nothing in the table forbids a second one for a transfer."""

    __tablename__ = "bookings"

    seq: Mapped[int] = mapped_column(primary_key=True)
    transfer: Mapped[int]
    amount: Mapped[Decimal] = mapped_column(Numeric(14, 2))


def open_bank(engine: Engine) -> None:
    """Make the tables, and put money into each account."""
    Bank.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all(Account(number=number, balance=OPENING) for number in range(ACCOUNTS))


class AnyTransfer(Job):
    """One movement of money, from `source` to `target`."""

    __abstract__ = True
    retries = MANY
    money = True
    idempotent_by = "number"

    number: Mapped[int] = arg()
    source: Mapped[int] = arg()
    target: Mapped[int] = arg()
    amount: Mapped[Decimal] = arg()

    def book(self, session: Session) -> None:
        """Move the money and write it down; the accounts in one order for everybody."""
        moves = {self.source: -self.amount, self.target: self.amount}
        for number in sorted(moves):
            change = {"balance": Account.balance + moves[number]}
            session.execute(update(Account).where(Account.number == number).values(change))
        session.add(Booking(transfer=self.number, amount=self.amount))

    def go_on(self, session: Session) -> None:
        """What comes after the booking, which is committed by then: a worker that is killed here does it all again."""
        session.commit()
        session.execute(text("SELECT pg_sleep(0.02)"))


class Transfer(AnyTransfer, policy="system"):
    def perform(self, session: Session) -> None:
        if once(session, self):
            self.book(session)
        self.go_on(session)


class CarelessTransfer(AnyTransfer, policy="system"):
    def perform(self, session: Session) -> None:
        self.book(session)
        self.go_on(session)


def balances(engine: Engine) -> dict[int, Decimal]:
    """What is in each account."""
    with Session(engine) as session:
        return {account.number: account.balance for account in session.scalars(select(Account))}


def bookings(engine: Engine) -> list[int]:
    """The transfers that were booked, as often as they were."""
    with Session(engine) as session:
        return sorted(session.scalars(select(Booking.transfer)))
