"""Jobs that take something definite, for rows that give them something else."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, arg
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
