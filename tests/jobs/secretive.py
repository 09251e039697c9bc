"""Jobs that are given a secret, and make the database say it."""

from __future__ import annotations

from typing import Any

from psycopg import Connection
from sqlalchemy import text
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, arg

CARD = "4111-1111"


class Pays(Job, policy="system", name="Pays\x1b[2J\u202e\r\nevent=forged"):
    """Fails as `how` says."""

    retries = Retries(times=0)

    how: Mapped[str] = arg()
    card: Mapped[str] = arg(sensitive=True)

    def perform(self, session: Session) -> None:
        getattr(self, self.how)(session)

    def repeats(self, session: Session) -> None:
        """DETAIL: Key (card)=(…) already exists."""
        for _ in range(2):
            session.execute(text("INSERT INTO cards (card) VALUES (:card)"), {"card": self.card})

    def breaks_a_check(self, session: Session) -> None:
        """DETAIL: Failing row contains (…), and so do the arguments of the job."""
        self.queue = "forbidden"
        session.flush()

    def gives_no_number(self, session: Session) -> None:
        """The first line has it: invalid input syntax for type integer: "…"."""
        session.execute(text("SELECT CAST(:card AS integer)"), {"card": self.card})

    def gives_no_number_in_sql(self, session: Session) -> None:
        """LINE 1 of the statement, which the server repeats."""
        session.execute(text("SELECT count(*) FROM cards WHERE nothing = :card"), {"card": self.card})

    def is_told_by_a_function(self, session: Session) -> None:
        """CONTEXT: SQL statement "SELECT …"."""
        session.execute(text("SELECT tell(:card)"), {"card": self.card})

    def goes_on_after_a_failed_flush(self, session: Session) -> None:
        """SQLAlchemy repeats the whole first error."""
        session.add(Pays(how="repeats", card=self.card, queue="forbidden"))
        try:
            session.flush()
        except Exception:
            session.execute(text("SELECT 1"))

    def asks_the_driver(self, session: Session) -> None:
        """Below SQLAlchemy."""
        driver: Connection[Any] | Any = session.connection().connection.driver_connection
        driver.execute("INSERT INTO cards (card) VALUES (%s), (%s)", (self.card, self.card))

    def is_not_recorded(self, session: Session) -> None:
        """The failure itself breaks the CHECK: the log says so."""
        session.execute(text("UPDATE magik_jobs SET queue = 'forbidden' WHERE id = :id"), {"id": self.id})
