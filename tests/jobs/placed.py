"""A job that shows in which schema it ran."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, arg, metadata


class Placed(Job, policy="system"):
    """Writes a note beside the tables of the queue; on its second try when told so."""

    idempotent_by = "number"
    retries = Retries(times=1, backoff="constant", base="1ms", jitter=0)
    number: Mapped[int] = arg()
    fails: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        session.execute(text("INSERT INTO notes VALUES (:number)"), {"number": self.number})
        if self.error_count < self.fails:
            raise ValueError(metadata.schema)
