"""Jobs that end in every way there is, and write down through their Session what they saw."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, arg, context, policy
from tests.tools.effects import record


class Gone(Exception):
    """There is nothing left to do it for."""


class LongGone(Gone):
    """Even less."""


def write(session: Session, note: str) -> None:
    """A row of the application's, in whatever transaction the Session is in."""
    session.execute(text("INSERT INTO notes (note) VALUES (:note)"), {"note": note})


class Kept(Job, policy="system"):
    """Its finished rows stay."""

    keep = "7d"
    idempotent_by = "number"
    number: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        record(self)
        write(session, "kept")


class Failing(Job, policy="system"):
    """Fails each time, after it has written something."""

    retries = Retries(times=2, backoff="exponential", base="400ms", cap="10s", jitter=0)
    cause: Mapped[str] = arg(default="")

    def perform(self, session: Session) -> None:
        record(self, str(self.error_count))
        write(session, "of a run that failed")
        try:
            raise KeyError("the first reason")
        except KeyError as error:
            raise ValueError(f"try {self.error_count + 1}") from error

    def on_failure(self, session: Session, error: BaseException) -> None:
        write(session, f"on_failure {type(error).__name__}: {error} after {self.error_count}")


class Jittery(Job, policy="system"):
    """Fails, and leaves half of its wait to chance."""

    retries = Retries(times=1, backoff="constant", base="20s", jitter=0.5)

    def perform(self, session: Session) -> None:
        raise ValueError


class Discarding(Job, policy="system"):
    """Gives up at once when what it is for is gone."""

    discard_on = Gone
    long: Mapped[bool] = arg()

    def perform(self, session: Session) -> None:
        record(self)
        raise LongGone("by years") if self.long else Gone("just now")

    def on_failure(self, session: Session, error: BaseException) -> None:
        write(session, f"on_failure {type(error).__name__}")


class FailingTwice(Job, policy="system"):
    """Its on_failure fails too: with an error, or by leaving the process."""

    retries = Retries(times=0)
    leaving: Mapped[bool] = arg()

    def perform(self, session: Session) -> None:
        record(self)
        raise ValueError("in perform")

    def on_failure(self, session: Session, error: BaseException) -> None:
        record(self, "on_failure")
        write(session, "of an on_failure that failed")
        raise SystemExit(3) if self.leaving else LookupError("in on_failure")


class Advancing(Job, policy="system"):
    """Saves how far it is, fails, and goes on from there; in the end it tells how far it came."""

    retries = Retries(times=1, backoff="constant", base="1ms", cap="1ms")
    at: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        record(self, str(self.at))
        write(session, f"step {self.at}")
        self.at += 1
        session.commit()
        self.at += 100
        session.flush()
        raise ValueError

    def on_failure(self, session: Session, error: BaseException) -> None:
        write(session, f"came to {self.at} in {self.error_count} tries")


class Carrying(Job, policy="system"):
    """Tells what travelled with it, and lets another tell the same."""

    again: Mapped[bool] = arg(default=True)

    def perform(self, session: Session) -> None:
        write(session, f"carried {dict(context.get())}")
        if self.again:
            session.add(Carrying(again=False))


@policy("ask")
def may_run(job: Asking, session: Session) -> bool:
    """What the job says itself; what a policy writes is no part of the job's transaction."""
    write(session, f"asked {job.answer}")
    if job.answer == "raise":
        raise ValueError("the policy itself failed")
    return job.answer == "yes"


class Asking(Job, policy="ask"):
    """Runs if its policy lets it."""

    retries = Retries(times=1, backoff="constant", base="1ms", cap="1ms")
    answer: Mapped[str] = arg()

    def perform(self, session: Session) -> None:
        record(self, self.answer)

    def on_failure(self, session: Session, error: BaseException) -> None:
        write(session, f"on_failure {self.answer}")
