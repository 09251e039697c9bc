"""Jobs that tell when they started."""

from __future__ import annotations

from sqlalchemy.orm import Session

from magik_sa import Job
from tests.tools.effects import record


class Woken(Job, policy="system"):
    """Records its start, by the database's clock."""

    def perform(self, session: Session) -> None:
        record(self)
