"""The workload's job classes. Each does something outside of its Session, which the record has, and something in it."""

from __future__ import annotations

import time
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from magik_sa import Job, Retries, Schedule, arg, once
from tests.jobs.money import AnyTransfer

from .record import running, tell

MANY = Retries(times=10_000, backoff="constant", base="50ms", jitter=0)


class Books(DeclarativeBase):
    """The application's own tables."""


class Entry(Books):
    """What a job wrote through its Session; nothing in the table forbids a second row."""

    __tablename__ = "entries"

    seq: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[UUID]
    part: Mapped[int]


GIVEN_UP = -1  # the part that on_failure writes


class Worked(Job):
    """One effect outside, one entry within."""

    __abstract__ = True
    retries = MANY

    def perform(self, session: Session) -> None:
        with running(self):
            tell("effect", [self])
            self.work(session)
            session.add(Entry(job_id=self.id, part=0))

    def work(self, session: Session) -> None:
        """What takes time, before anything is written."""


class Simple(Worked, policy="system"):
    """Slow in the middle of its transaction, or not at all."""

    seconds: Mapped[float] = arg(default=0.0)

    def work(self, session: Session) -> None:
        if self.seconds:
            session.execute(text("SELECT 1"))
            time.sleep(self.seconds)


class Mail(Job, policy="system"):
    """Never uses its Session."""

    retries = MANY

    def perform(self, session: Session) -> None:
        with running(self):
            tell("effect", [self])


class OneOfAKey(Worked, policy="system"):
    """At most one live job a number."""

    idempotent_by = "number"
    number: Mapped[int] = arg()

    def work(self, session: Session) -> None:
        time.sleep(0.02)


class Chain(Worked, policy="system"):
    """Adds the next of its own name, and of its own key, until the last."""

    idempotent_by = "name"
    name: Mapped[str] = arg()
    step: Mapped[int] = arg(default=0)
    last: Mapped[int] = arg(default=4)

    def work(self, session: Session) -> None:
        if self.step < self.last:
            session.add(Chain(name=self.name, step=self.step + 1, last=self.last))


class Long(Job, policy="system"):
    """Writes `parts` entries, and saves with each how far it has got."""

    retries = MANY
    parts: Mapped[int] = arg()
    pause: Mapped[float] = arg(default=0.1)
    cursor: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        with running(self, self.cursor):
            while self.cursor < self.parts:
                time.sleep(self.pause)
                tell("effect", [self], self.cursor)
                session.add(Entry(job_id=self.id, part=self.cursor))
                self.cursor += 1
                session.commit()


class Payment(AnyTransfer, policy="system"):
    """Money, once and for ever for each number, however often it is asked for."""

    def perform(self, session: Session) -> None:
        with running(self):
            tell("effect", [self])
            if once(session, self):
                self.book(session)
            self.go_on(session)


class Flaky(Worked, policy="system"):
    """Fails the first time, in the middle of what it writes."""

    def work(self, session: Session) -> None:
        if not self.error_count:
            session.add(Entry(job_id=self.id, part=0))
            session.flush()
            raise RuntimeError("the first time")


class Overlong(Worked, policy="system"):
    """Lasts for too long the first time."""

    retries = Retries(times=10_000, backoff="constant", base="50ms", jitter=0, timeout="1s")

    def work(self, session: Session) -> None:
        if not self.error_count:
            session.execute(text("SELECT pg_sleep(3)"))


class Doomed(Job, policy="system"):
    """Never succeeds: a dead letter in the end, and nothing of what it wrote stays but what on_failure wrote."""

    retries = Retries(times=2, backoff="constant", base="50ms", jitter=0)

    def perform(self, session: Session) -> None:
        with running(self):
            session.add(Entry(job_id=self.id, part=0))
            session.flush()
            raise RuntimeError("as ever")

    def on_failure(self, session: Session, error: BaseException) -> None:
        session.add(Entry(job_id=self.id, part=GIVEN_UP))


class Tick(Worked, policy="system"):
    """Made by its schedules."""

    schedule = (
        Schedule(every="1s", name="each"),
        Schedule(every="3s", name="third"),
        Schedule(cron="* * * * *", zone="UTC", name="minute"),
    )
