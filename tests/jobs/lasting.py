"""Jobs that last, and a module that takes its time to be imported."""

from __future__ import annotations

import os
import time

import psycopg
from sqlalchemy import text
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, arg
from tests.tools.effects import effect, execute
from tests.tools.waiting import until
from tests.tools.workers import dsn_of


class Lasting(Job, policy="system"):
    """Lasts as long as it is told."""

    seconds: Mapped[float] = arg(default=0.0)

    def perform(self, session: Session) -> None:
        with effect(self):
            time.sleep(self.seconds)


class LastingUntilGo(Job, policy="system"):
    """Lasts until there is a table `go`; may ask by way of any pooler."""

    def perform(self, session: Session) -> None:
        with effect(self), psycopg.connect(dsn_of(os.environ["MAGIK_DATABASE_URL"]), autocommit=True) as own:
            own.prepare_threshold = None
            until(lambda: own.execute("SELECT to_regclass('go')").fetchone() != (None,), 60, every=0.05)


class LastingUntilTold(Job, policy="system"):
    """At most one live job a tenant, which lasts until there is a table `told`."""

    idempotent_by = "tenant_id"
    tenant_id: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        with effect(self):
            until(lambda: execute("SELECT to_regclass('told')", ()).fetchone() != (None,), 60)


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
