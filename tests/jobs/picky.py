"""Jobs that take something definite, for rows that give them something else."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field
from sqlalchemy.orm import Mapped, Session
from typing_extensions import TypedDict

from magik_sa import Discard, Job, Retries, Snooze, arg
from tests.tools.effects import record


class Picky(Job, policy="system"):
    """Needs a number; reads its arguments before it does anything."""

    retries = Retries(times=1, base="1ms", cap="1ms")

    number: Mapped[Annotated[int, Field(ge=0)]] = arg()
    data: Mapped[dict[str, Any]] = arg(default_factory=dict)

    def perform(self, session: Session) -> None:
        record(self, f"{self.number} {len(self.data)}")


class Lazy(Job, policy="system"):
    """Declares a number and never looks at it."""

    retries = Retries(times=1, base="1ms", cap="1ms")

    number: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        record(self)


class Colour(Enum):
    RED = "red"


class Place(BaseModel):
    street: str
    number: int


@dataclass
class Pair:
    left: int
    right: int


class Point(TypedDict):
    x: float


class Abstract(Job, policy="system"):
    """Has no jobs of its own."""

    __abstract__ = True


class Every(Abstract):
    """An argument of each kind, none of them required, so that a row can spoil one at a time."""

    retries = Retries(times=0)

    whole: Mapped[int] = arg(default=1)
    flag: Mapped[bool] = arg(default=True)
    ratio: Mapped[float] = arg(default=0.5)
    amount: Mapped[Decimal] = arg(default=Decimal("1.5"))
    name: Mapped[str] = arg(default="a")
    who: Mapped[UUID] = arg(default=UUID(int=1))
    at: Mapped[datetime] = arg(default=datetime(2026, 1, 1, tzinfo=UTC))
    day: Mapped[date] = arg(default=date(2026, 1, 1))
    span: Mapped[timedelta] = arg(default=timedelta(hours=1))
    data: Mapped[bytes] = arg(default=b"x")
    colour: Mapped[Colour] = arg(default=Colour.RED)
    word: Mapped[Literal["on", "off"]] = arg(default="on")
    maybe: Mapped[int | None] = arg(default=None)
    items: Mapped[list[int]] = arg(default_factory=list)
    names: Mapped[dict[str, int]] = arg(default_factory=dict)
    several: Mapped[set[int]] = arg(default_factory=set)
    pair: Mapped[tuple[int, str]] = arg(default=(1, "a"))
    place: Mapped[Place] = arg(default=Place(street="a", number=1))
    both: Mapped[Pair] = arg(default=Pair(1, 2))
    point: Mapped[Point] = arg(default=Point(x=0.5))
    anything: Mapped[Any] = arg(default=None)

    def perform(self, session: Session) -> None:
        record(self)


class Ends(Job, policy="system"):
    """Ends in one of the ways that write its row."""

    retries = Retries(times=2, base="1ms", cap="1ms")
    keep = "1h"

    how: Mapped[str] = arg()
    seen: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        record(self)
        self.seen += 1
        if self.how == "saves":
            session.commit()
            self.seen += 1
            session.commit()
        if self.how == "snoozes" and self.seen == 1:
            raise Snooze("0s")
        if self.how == "is discarded":
            raise Discard("by hand")
        if self.how == "fails":
            raise RuntimeError
