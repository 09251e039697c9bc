"""A class whose on_schedule takes its process with it until it is mended, and healthy ones beside it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from sqlalchemy import text
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Schedule, arg
from tests.tools.effects import record


class DeadlyTick(Job, policy="system"):
    """Each start of its on_schedule leaves an effect; until there is a table `mended` it ends its process."""

    schedule = Schedule(every="1h")

    def perform(self, session: Session) -> None:
        record(self, "performed")

    @classmethod
    def on_schedule(cls, session: Session) -> Iterator[Job]:
        job = cls()
        record(job, "tried")
        if not session.scalar(text("SELECT to_regclass('mended') IS NOT NULL")):
            os._exit(1)
        yield job


class HealthyTick(Job, policy="system"):
    """Its schedules make jobs as they should."""

    schedule = tuple(Schedule(every="1h", name=f"n{n}", args={"number": n}) for n in range(5))
    number: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        record(self, str(self.number))


class Neighbour(Job, policy="system"):
    """Added by hand, and done in a moment."""

    def perform(self, session: Session) -> None:
        time.sleep(0.05)
        record(self)
