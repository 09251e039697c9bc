"""Jobs for the tests of the test kit: what an application's own might be."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from decimal import Decimal
from typing import Annotated

from pydantic import Field
from sqlalchemy import text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from magik_sa import Discard, Job, Retries, Snooze, arg, around_perform, context, policy


class Base(DeclarativeBase):
    """The application's tables."""


class Account(Base):
    """What the jobs below write to."""

    __tablename__ = "accounts"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    balance: Mapped[int] = mapped_column(default=0)


class PaymentDeclined(Exception):
    """What a job fails with."""


class Deposit(Job, policy="system"):
    """Pays something in."""

    retries = Retries(times=1, backoff="constant", base="10m", jitter=0)
    account: Mapped[int] = arg()
    amount: Mapped[Annotated[int, Field(gt=0)]] = arg(default=1)

    def perform(self, session: Session) -> None:
        session.get_one(Account, self.account).balance += self.amount


class Refused(Deposit, policy="system", queue="cards"):
    """Writes, then fails."""

    def perform(self, session: Session) -> None:
        super().perform(session)
        session.flush()
        raise PaymentDeclined("the card")

    def on_failure(self, session: Session, error: BaseException) -> None:
        session.get_one(Account, self.account).balance = -1


class Divided(Deposit, policy="system"):
    """Fails in the database, which then takes no further statement in that transaction."""

    def perform(self, session: Session) -> None:
        super().perform(session)
        session.execute(text("SELECT 1/0"))


class Hasty(Refused, policy="system"):
    """Hardly waits before it fails again."""

    retries = Retries(times=5, backoff="constant", base="1ms")


class Lasting(Deposit, policy="system", name="kit.Lasting"):
    """Waits in the server for longer than it may."""

    retries = Retries(times=1, timeout="2s", backoff="constant", base="10m")

    def perform(self, session: Session) -> None:
        super().perform(session)
        session.execute(text("SELECT pg_sleep(2.1)"))

    def on_failure(self, session: Session, error: BaseException) -> None:
        Deposit.perform(self, session)


class Jostled(Deposit, policy="system"):
    """Is broken off once by the server, as after a deadlock."""

    def perform(self, session: Session) -> None:
        super().perform(session)
        if not self.error_count:
            session.execute(text("DO $$ BEGIN RAISE 'deadlock' USING ERRCODE = '40P01'; END $$"))


class Monthly(Deposit, policy="system"):
    """Adds the next of its own key."""

    idempotent_by = "account"

    def perform(self, session: Session) -> None:
        super().perform(session)
        session.add(Monthly(account=self.account, delay="30d"))


class Unending(Job, policy="system"):
    """Adds itself, at once."""

    def perform(self, session: Session) -> None:
        session.add(Unending())


class Steps(Deposit, policy="system"):
    """Saves where it is, then rolls the rest back."""

    done: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        super().perform(session)
        self.done = 1
        session.commit()
        super().perform(session)
        session.rollback()


class Later(Deposit, policy="system"):
    """Pays in and asks for more time, twice."""

    asked: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        super().perform(session)
        if self.asked < 2:
            self.asked += 1
            raise Snooze("5m")


class Closed(Deposit, policy="system"):
    """Pays in, then wishes to be no more."""

    def perform(self, session: Session) -> None:
        super().perform(session)
        raise Discard("the account is closed")


class Archived(Deposit, policy="system"):
    """Its finished row stays."""

    keep = "7d"

    def perform(self, session: Session) -> None:
        super().perform(session)


class Stopped(Job, policy="system"):
    """Ends as Ctrl-C would."""

    def perform(self, session: Session) -> None:
        raise KeyboardInterrupt


@policy("kit.only_ada")
def only_ada(job: Escorted, session: Session) -> bool:
    """By what travelled with the job, and by the database."""
    return bool(session.scalar(text("SELECT true"))) and context.get().get("actor") == "ada"


class Escorted(Job, policy="kit.only_ada"):
    """May be run by one person."""

    amount: Mapped[Decimal] = arg()
    tags: Mapped[list[str]] = arg(default_factory=list)
    card: Mapped[str] = arg(default="", sensitive=True)

    def perform(self, session: Session) -> None:
        seen.append((surrounding.get(), dict(context.get()), self.amount, list(self.tags)))


surrounding: ContextVar[str] = ContextVar("surrounding", default="nothing")
seen: list[object] = []


@around_perform
def around_kit(job: Job, session: Session) -> Iterator[None]:
    """What an application puts around each perform."""
    token = surrounding.set(type(job).__name__)
    yield
    surrounding.reset(token)
