"""Jobs that write through their Session into a table of the application, as well as on a connection of their own."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from magik_sa import Job, Retries, arg
from tests.tools.effects import effect


class Books(DeclarativeBase):
    """The application's own tables."""


class Entry(Books):
    """What a job wrote through its Session; nothing in the table forbids a second row."""

    __tablename__ = "entries"

    seq: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[UUID]
    part: Mapped[int]
    worker: Mapped[int]


class Gate(Books):
    """A gate that is open once there is a row."""

    __tablename__ = "gates"

    name: Mapped[str] = mapped_column(primary_key=True)


def open_books(engine: Engine) -> None:
    """Make the application's tables."""
    Books.metadata.create_all(engine)


class Posting(Job, policy="system"):
    """Writes one entry, and takes `seconds` of work before it ends; `again` of them when it was interrupted before.

    With `stays` it ends so many seconds after its worker was told to stop.
    """

    seconds: Mapped[float] = arg(default=0.0)
    again: Mapped[float] = arg(default=0.0)
    stays: Mapped[float] = arg(default=0.0)

    def perform(self, session: Session) -> None:
        with effect(self, f"attempt {self.error_count + 1}"):
            session.add(Entry(job_id=self.id, part=0, worker=os.getpid()))
            session.flush()
            while self.stays and not self.stopping:
                threading.Event().wait(0.01)
            time.sleep(self.stays or (self.again if self.error_count else self.seconds))


class GatedPosting(Job, policy="system"):
    """Writes one entry, and ends when the gate has been opened."""

    def perform(self, session: Session) -> None:
        with effect(self):
            session.add(Entry(job_id=self.id, part=0, worker=os.getpid()))
            session.flush()
            while session.get(Gate, "open") is None:
                session.expire_all()
                threading.Event().wait(0.02)


class Chunks(Job, policy="system"):
    """Writes `parts` entries; saves after each how far it has got."""

    retries = Retries(times=20, backoff="constant", base="20ms", jitter=0)

    parts: Mapped[int] = arg()
    pause: Mapped[float] = arg(default=0.1)
    cursor: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        with effect(self, f"from {self.cursor}"):
            while self.cursor < self.parts:
                time.sleep(self.pause)
                session.add(Entry(job_id=self.id, part=self.cursor, worker=os.getpid()))
                self.cursor += 1
                session.commit()
