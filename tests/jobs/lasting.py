"""Jobs that last, and a module that takes its time to be imported."""

from __future__ import annotations

import time

from sqlalchemy import text
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, arg
from tests.tools.effects import effect, execute
from tests.tools.waiting import until


class Lasting(Job, policy="system"):
    """Lasts as long as it is told."""

    seconds: Mapped[float] = arg(default=0.0)

    def perform(self, session: Session) -> None:
        with effect(self):
            time.sleep(self.seconds)


class LastingUntilTold(Job, policy="system"):
    """At most one live job a tenant, which lasts until there is a table `told`."""

    idempotent_by = "tenant_id"
    tenant_id: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        with effect(self):
            until(lambda: execute("SELECT to_regclass('told')", ()).fetchone() != (None,), 60)


class LastingInSession(Job, policy="system"):
    """Uses its Session first, so it ends by a statement of its own thread."""

    seconds: Mapped[float] = arg(default=0.0)

    def perform(self, session: Session) -> None:
        session.execute(text("SELECT 1"))
        with effect(self):
            time.sleep(self.seconds)


class LastingKeyed(Job, policy="system"):
    """At most one live job a tenant."""

    idempotent_by = "tenant_id"
    tenant_id: Mapped[int] = arg()
    seconds: Mapped[float] = arg(default=0.0)

    def perform(self, session: Session) -> None:
        with effect(self):
            time.sleep(self.seconds)
