"""Jobs that end in every way a job can."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Mapped, Session

from magik_sa import Discard, Job, Retries, Snooze, arg, bulk_enqueue, context, policy


def note(session: Session, what: str) -> None:
    """Something that is written with the job."""
    session.execute(text("INSERT INTO notes VALUES (:what)"), {"what": what})


class Good(Job, policy="system"):
    def perform(self, session: Session) -> None:
        note(session, "good")


class Sleepy(Job, policy="system"):
    """Asks for later, once."""

    def perform(self, session: Session) -> None:
        note(session, "before")
        raise Snooze("5m")


class Late(Job, policy="system"):
    """Notes when its transaction began, and asks for later."""

    def perform(self, session: Session) -> None:
        session.execute(text("INSERT INTO notes SELECT now()"))
        raise Snooze("5m")


class Unwanted(Job, policy="system"):
    def perform(self, session: Session) -> None:
        note(session, "before")
        raise Discard("the account is closed")

    def on_failure(self, session: Session, error: BaseException) -> None:
        note(session, f"told {error}")


class Broken(Job, policy="system"):
    retries = Retries(times=1, backoff="constant", base="10m", jitter=0)

    def perform(self, session: Session) -> None:
        note(session, "never seen")
        raise ValueError("broken")

    def on_failure(self, session: Session, error: BaseException) -> None:
        note(session, f"told {error}")


class BrokenOff(Job, policy="system"):
    """Meets another transaction at each of its tries."""

    retries = Retries(times=3, backoff="constant", base="10m", jitter=0)

    def perform(self, session: Session) -> None:
        session.execute(text("DO $$ BEGIN RAISE 'serialization' USING ERRCODE = '40001'; END $$"))


class Chunk(Job, policy="system"):
    """Adds the next chunk of its own key."""

    idempotent_by = "of"
    of: Mapped[str] = arg()
    at: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        note(session, f"chunk {self.at}")
        if self.at < 3:
            following = Chunk(of=self.of, at=self.at + 1)
            session.add(following)
            session.flush()
            assert not following.is_repeat


class BulkChunk(Chunk, policy="system"):
    """Adds the next chunk of its own key among others, many at once."""

    at: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        note(session, f"chunk {self.at}")
        if self.at < 3:
            following = BulkChunk(of=self.of, at=self.at + 1)
            assert bulk_enqueue(session, [BulkChunk(of=f"{self.of}{self.at}", at=9), following]) == 1
            assert not following.is_repeat


class Failing(Chunk, policy="system", name="FailingChunk"):
    """Adds the next chunk and fails."""

    retries = Retries(times=0)
    at: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        super().perform(session)
        raise ValueError


@policy("endings.only_ada")
def only_ada(_: Job, session: Session) -> bool:
    """Asks the database too, as policies do."""
    return bool(session.scalar(text("SELECT true"))) and context.get().get("actor") == "ada"


class Guarded(Job, policy="endings.only_ada"):
    def perform(self, session: Session) -> None:
        assert not session.in_transaction()  # the policy's is over
        note(session, str(context.get()["actor"]))


@policy("endings.undecided")
def undecided(job: Guarded, session: Session) -> Any:
    """Has no answer, as where an async function behind it was not awaited."""
    session.execute(text("INSERT INTO notes VALUES ('asked')"))


@policy("endings.witnessed")
def witnessed(job: Job, session: Session) -> bool:
    """Leaves to the Session when what it adds is written."""
    session.add(Chunk(of=f"asked of {job.__magik__.name}", delay="1h"))
    return False


class Witnessed(Job, policy="endings.witnessed"):
    def perform(self, session: Session) -> None: ...


class Undecided(Job, policy="endings.undecided"):
    def perform(self, session: Session) -> None:
        note(session, "performed")


class Reloading(Job, policy="system"):
    """Rolls back in the middle, and saves where it is."""

    cursor: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        note(session, "lost")
        session.rollback()
        self.cursor += 1
        note(session, "saved")
        session.commit()
        note(session, "kept")
