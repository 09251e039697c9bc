"""A job with plain names that fails with wide words."""

from __future__ import annotations

from typing import Final

from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, arg
from tests.tools.effects import record

TOLD: Final = "日本🦄" * 20_000


class Plain(Job, policy="system"):
    """Fails, or ends well."""

    retries = Retries(times=0)
    ends_well: Mapped[bool] = arg(default=False)

    def perform(self, session: Session) -> None:
        record(self)
        if not self.ends_well:
            raise ValueError(TOLD)
