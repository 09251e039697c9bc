"""A job that does all that a worker's role needs a privilege for."""

from __future__ import annotations

import time

from sqlalchemy import text
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, Schedule, arg, once


class Granted(Job, policy="system"):
    """Ends as it is told to, once, with a note of it; its row is kept. A tick a second."""

    idempotent_by = "ends"
    keep = "1h"
    schedule = Schedule(every="1s", args={"ends": "tick"})
    retries = Retries(times=1, backoff="constant", base="1ms", jitter=0)
    ends: Mapped[str] = arg()

    def perform(self, session: Session) -> None:
        if self.ends == "badly" or (self.ends == "later" and not self.error_count):
            raise ValueError(self.ends)
        if self.ends == "elsewhere" and not self.error_count:
            time.sleep(60)
        if once(session, self):
            session.execute(text("INSERT INTO public.notes VALUES (:ends)"), {"ends": self.ends})
