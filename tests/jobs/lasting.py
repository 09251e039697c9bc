"""Jobs that last, and a module that takes its time to be imported."""

from __future__ import annotations

import time

from sqlalchemy import text
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, arg
from tests.tools.effects import effect


class Lasting(Job, policy="system"):
    """Lasts as long as it is told."""

    seconds: Mapped[float] = arg(default=0.0)

    def perform(self, session: Session) -> None:
        with effect(self):
            time.sleep(self.seconds)


class LetGoInSession(Job, policy="system"):
    """Uses its Session, so it ends by a statement of its own thread; lasts until the advisory lock (7, 7) is free."""

    def perform(self, session: Session) -> None:
        with effect(self):
            session.execute(text("SELECT pg_advisory_xact_lock_shared(7, 7)"))


class LastingKeyed(Job, policy="system"):
    """At most one live job a tenant."""

    idempotent_by = "tenant_id"
    tenant_id: Mapped[int] = arg()
    seconds: Mapped[float] = arg(default=0.0)

    def perform(self, session: Session) -> None:
        with effect(self):
            time.sleep(self.seconds)
