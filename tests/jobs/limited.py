"""Jobs with a time limit, which do all kinds of things when it passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from magik_sa import Job, JobTimeout, Retries, Snooze, arg, policy

LIMIT = 0.3  # seconds


class Tables(DeclarativeBase):
    """The application's own tables."""


class Note(Tables):
    """Written with the job; who writes a word that another transaction has not committed yet waits for it."""

    __tablename__ = "notes"

    what: Mapped[str] = mapped_column(primary_key=True)


def spin(seconds: float = 30.0, step: Callable[[], object] = lambda: None) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        step()


def swallow(kind: type[BaseException], work: Callable[[], object], seconds: float = 1.5) -> None:
    """Work on, whatever is raised."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(kind):
            work()


def query(session: Session, seconds: float = 30.0) -> None:
    session.execute(text("SELECT pg_sleep(:s)"), {"s": seconds})


def querying_on(session: Session) -> None:
    """Roll back what was cancelled, and ask again."""
    try:
        query(session)
    except DBAPIError:
        session.rollback()
        query(session)


def held_up(session: Session) -> None:
    """What is written waits for another transaction, in the flush that follows perform."""
    session.add(Note(what="held"))


def snooze_late() -> None:
    time.sleep(LIMIT * 2)
    raise Snooze("1h")


def saving(job: Job, session: Session) -> None:
    job.cursor += 1  # type: ignore[attr-defined]
    session.commit()


def going_on(job: Job, session: Session) -> None:
    """What it has written cannot be committed, for a fault that the flush finds; it spins instead."""
    session.expunge_all()
    session.add(Note(what=str(job.id)))  # once more
    with suppress(DBAPIError):
        session.commit()
    spin()


def unwritten(session: Session) -> None:
    """The same, for a fault that an application's own listener finds before the flush."""

    @event.listens_for(session, "before_flush")
    def refuse(*_: object) -> None:
        raise ValueError("no")

    session.add(Note(what="refused"))
    with suppress(ValueError):
        session.commit()
    spin()


def written_late(session: Session) -> None:
    """The same, for what a listener writes within the commit."""

    @event.listens_for(session, "before_commit")
    def write(_: Session) -> None:
        session.add(Note(what=None))

    with suppress(DBAPIError):
        session.commit()
    spin()


HOW: dict[str, Callable[[Job, Session], object]] = {
    "nothing": lambda *_: None,
    "spins": lambda *_: spin(),
    "sleeps in steps": lambda *_: spin(30, lambda: time.sleep(0.01)),
    "sleeps at a stretch": lambda *_: time.sleep(LIMIT * 2),
    "swallows Exception": lambda *_: swallow(Exception, lambda: spin(0.05), 5),
    "swallows everything": lambda *_: swallow(BaseException, lambda: spin(0.05)),
    "waits for a query": lambda _, session: query(session),
    "goes on after its query": lambda _, session: querying_on(session),
    "waits for a lock": lambda _, session: session.execute(text("INSERT INTO notes VALUES ('held')")),
    "waits for a lock in the flush": lambda _, session: held_up(session),
    "snoozes too late": lambda *_: snooze_late(),
    "spins after a commit whose flush failed": going_on,
    "spins after a commit whose flush was refused": lambda _, session: unwritten(session),
    "spins after a commit that wrote late": lambda _, session: written_late(session),
    "saves all the time": lambda job, session: spin(30, lambda: saving(job, session)),
    "asks all the time": lambda _, session: spin(30, lambda: session.execute(text("SELECT 1"))),
}


class Limited(Job, policy="system"):
    """Writes a note, then does what its name says."""

    retries = Retries(times=1, backoff="constant", base="1h", jitter=0, timeout="300ms")
    how: Mapped[str] = arg()
    cursor: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        session.add(Note(what=str(self.id)))
        session.flush()
        HOW[self.how](self, session)


class LimitedLonger(Limited, policy="system"):
    """By so much that it is under way before its time is up, wherever the machine stands still."""

    retries = Retries(times=1, backoff="constant", base="1h", jitter=0, timeout="3s")


class Ample(Limited, policy="system"):
    """Has a limit, and ends before."""

    retries = Retries(times=1, backoff="constant", base="1h", jitter=0, timeout="1m")


class LimitedToSeconds(Limited, policy="system", name="LimitedToSeconds"):
    """Has a limit that a test can see it under."""

    retries = Retries(times=1, backoff="constant", base="1h", jitter=0, timeout="4s")
    how: Mapped[str] = arg()
    cursor: Mapped[int] = arg(default=0)


class Stirring(Job, policy="system"):
    """Is interrupted anywhere between savepoints, flushes, commits and rollbacks."""

    retries = Retries(times=0, timeout="60ms")
    cursor: Mapped[int] = arg(default=0)
    until_first: Mapped[float] = arg()

    def perform(self, session: Session) -> None:
        time.sleep(self.until_first)
        spin(30, lambda: self.stir(session))

    def stir(self, session: Session) -> None:
        with session.begin_nested():
            session.add(Note(what=f"{self.id} {self.cursor}"))
            session.flush()
        self.cursor += 1
        if self.cursor % 3:
            session.commit()
        else:
            session.rollback()


class Unlimited(Job, policy="system"):
    """What comes next on the same thread: takes a moment, in Python and in the database."""

    def perform(self, session: Session) -> None:
        spin(0.05)
        query(session, 0.05)
        session.add(Note(what=str(self.id)))


class NoSecondTime(Job, policy="system"):
    """A job that lasted too long would do so again."""

    retries = Retries(timeout="200ms")
    discard_on = JobTimeout

    def perform(self, session: Session) -> None:
        spin()


class ToldAtLength(Job, policy="system"):
    """Its on_failure does not end."""

    retries = Retries(times=0, timeout="200ms")

    def perform(self, session: Session) -> None:
        raise ValueError("broken")

    def on_failure(self, session: Session, error: BaseException) -> None:
        session.add(Note(what="told"))
        session.flush()
        query(session)


@policy("dawdle")
def may(job: Job, session: Session) -> bool:
    query(session)
    return True


class Dawdled(Job, policy="dawdle"):
    """Its policy does not answer."""

    retries = Retries(times=0, timeout="200ms")

    def perform(self, session: Session) -> None:
        session.add(Note(what="performed"))


class Shaving(Job, policy="system"):
    """Ends within 5 ms of its limit, before or after."""

    retries = Retries(times=0, timeout="100ms")
    seconds: Mapped[float] = arg()

    def perform(self, session: Session) -> None:
        began = time.monotonic()
        session.add(Note(what=str(self.id)))
        session.flush()
        time.sleep(max(0.0, began + self.seconds - 0.002 - time.monotonic()))
        spin(began + self.seconds - time.monotonic())
        session.add(Note(what=f"{self.id} {time.monotonic() - began}"))
