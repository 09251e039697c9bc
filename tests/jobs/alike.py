"""Schedules whose names are easily taken for each other."""

from __future__ import annotations

from sqlalchemy.orm import Session

from magik_sa import Job, Schedule
from tests.tools.effects import record


class Alike(Job):
    """Records its start."""

    __abstract__ = True

    def perform(self, session: Session) -> None:
        record(self, self.job_class)


class First(Alike, policy="system", name="a_"):
    """``a_`` and ``b``."""

    schedule = Schedule(every="1h", name="b")


class Second(Alike, policy="system", name="a"):
    """``a`` and ``_b``, and a second schedule of the same class."""

    schedule = (Schedule(every="1h", name="_b"), Schedule(every="1h", name="_B"))


class Third(Alike, policy="system", name="A"):
    """Differs by the case, and has a schedule without a name."""

    schedule = (Schedule(every="1h", name="_b"), Schedule(every="1h"))
