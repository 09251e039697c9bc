"""Jobs whose rows stay for a while, and one whose row does not."""

from __future__ import annotations

import os

import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Mapped, Session, sessionmaker

from magik_sa import Job, Schedule, arg
from tests.tools.waiting import until
from tests.tools.workers import dsn_of

# An engine of the application's own, with a name of its own.
sessions = sessionmaker(
    create_engine(
        os.environ.get("MAGIK_DATABASE_URL", "postgresql+psycopg://"), connect_args={"application_name": "shop"}
    )
)


class Fleeting(Job, policy="system"):
    """Leaves nothing behind, but for the one that is to fail."""

    fails: Mapped[bool] = arg(default=False)
    discard_on = (ValueError,)

    def perform(self, session: Session) -> None:
        if self.fails:
            raise ValueError


class KeptADay(Fleeting, policy="system"):
    """Stays for a day."""

    keep = "1d"


class KeptAWeek(Fleeting, policy="system"):
    """Stays for a week."""

    keep = "7d"


class KeptTicking(Job, policy="system"):
    """Ticks each second, where TICKING is set."""

    schedule = Schedule(every="1s") if os.environ.get("TICKING") else None

    def perform(self, session: Session) -> None: ...


class Pondering(Job, policy="system"):
    """Has its transaction open, and does nothing in it until there is a table `go`."""

    def perform(self, session: Session) -> None:
        session.execute(text("SELECT 1"))
        with psycopg.connect(dsn_of(os.environ["MAGIK_DATABASE_URL"]), autocommit=True) as own:
            until(lambda: own.execute("SELECT to_regclass('go')").fetchone() != (None,), 30)
