"""Jobs that an operator acts on: one that is in the middle of its work until the test lets it go on."""

from __future__ import annotations

import os

import psycopg
from sqlalchemy import text
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, arg
from tests.tools.effects import record
from tests.tools.waiting import until
from tests.tools.workers import dsn_of


class Held(Job, policy="system"):
    """Writes, waits for a row in `gates`, then ends or fails."""

    retries = Retries(times=3, backoff="constant", base="1ms")
    fails: Mapped[bool] = arg(default=False)

    def perform(self, session: Session) -> None:
        record(self, "started")
        session.execute(text("INSERT INTO notes (note) VALUES ('of a run')"))
        with psycopg.connect(dsn_of(os.environ["MAGIK_DATABASE_URL"]), autocommit=True) as gate:
            until(lambda: gate.execute("SELECT FROM gates").rowcount > 0, 30)
        if self.fails:
            raise ValueError("after all that")


class Quick(Job, policy="system"):
    """Records its start; one live job a number."""

    idempotent_by = "number"
    number: Mapped[int] = arg()
    token: Mapped[str] = arg(default="", sensitive=True)

    def perform(self, session: Session) -> None:
        record(self, str(self.number))
