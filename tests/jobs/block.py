"""Jobs that tell which thread and which kind of Session they ran in."""

from __future__ import annotations

import threading

from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, arg
from tests.tools.effects import effect, forget

going_on = threading.Event()


class Telling(Job, policy="system"):
    """Notes the class of its Session, and whether it was told to stop."""

    number: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        with effect(self, f"{type(session).__name__} {session.info.get('shop', '')} {self.stopping}"):
            pass
        forget()


class Lasting(Job, policy="system"):
    """Lasts until the test says so."""

    def perform(self, session: Session) -> None:
        with effect(self):
            going_on.wait(30)
        forget()
