"""Jobs whose every name is as long as it may be, in bytes, of characters that take four."""

from __future__ import annotations

from typing import Final

from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, Schedule, arg, policy
from tests.tools.effects import record

from .narrow import TOLD

WIDE: Final = "🦄" * 63 + "abc"  # 255 bytes, 66 characters


@policy(WIDE)
def lets(job: Job, session: Session) -> bool:
    """Lets anybody."""
    return True


class Wide(Job, policy=WIDE, queue=WIDE, name=WIDE):
    """Has them all."""

    schedule = Schedule(every="1h", name=WIDE, args={"note": "of a tick"})
    retries = Retries(times=0)
    note: Mapped[str] = arg()

    def perform(self, session: Session) -> None:
        record(self, self.note)
        raise ValueError(TOLD)
