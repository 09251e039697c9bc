"""A job with an argument of each kind."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, arg
from tests.tools.effects import record


class Intake(Job, policy="system"):
    """Takes nearly anything; its queue and priority are the default ones."""

    number: Mapped[Annotated[int, Field(ge=0)]] = arg()
    words: Mapped[str] = arg(default="")
    data: Mapped[dict[str, Any]] = arg(default_factory=dict)
    ratio: Mapped[float] = arg(default=0.0)
    amount: Mapped[Decimal] = arg(default=Decimal(1))
    at: Mapped[datetime | None] = arg(default=None)
    anything: Mapped[Any] = arg(default=None)
    secret: Mapped[str] = arg(default="", sensitive=True)

    def perform(self, session: Session) -> None:
        record(self, str(self.number))
