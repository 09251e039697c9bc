"""A job that is told a moment."""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, arg
from tests.tools.effects import record


class Reminding(Job, policy="system"):
    """Takes a moment and a day, keyed by the moment."""

    idempotent_by = "at"

    at: Mapped[datetime] = arg()
    day: Mapped[date | None] = arg(default=None)

    def perform(self, session: Session) -> None:
        record(self, self.at.isoformat())
