"""Jobs inside what the application put around each perform."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar

from sqlalchemy import text
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, Snooze, arg, around_perform

request: ContextVar[str] = ContextVar("request", default="none")


def write(session: Session, note: str) -> None:
    """A row of the application's, in the transaction of the job."""
    session.execute(text("INSERT INTO notes VALUES (:note)"), {"note": note})


@around_perform
def outer(job: Job, session: Session) -> Iterator[None]:
    if isinstance(job, Inside):
        write(session, "outer in")
        token = request.set(f"of {job.how}")
        try:
            yield
        finally:
            request.reset(token)
        write(session, "outer out")
    else:
        yield


@around_perform
def inner(job: Job, session: Session) -> Iterator[None]:
    if not isinstance(job, Inside):
        yield
        return
    write(session, "inner in")
    if job.how == "refused":
        raise ValueError("refused by what is around")
    try:
        yield
        if job.how == "left badly":
            raise ValueError("left badly")
    except ZeroDivisionError:
        write(session, "swallowed")
    finally:
        if job.how == "closed":
            session.close()
        if job.how != "finished":
            write(session, "inner out")


class Inside(Job, policy="system"):
    """Notes what is set around it, and ends as it is told."""

    retries = Retries(times=1, backoff="constant", base="1m", jitter=0)
    how: Mapped[str] = arg()

    def perform(self, session: Session) -> None:
        write(session, f"perform {request.get()}")
        if self.how == "raising":
            raise ZeroDivisionError
        if self.how == "snoozing":
            raise Snooze("1m")
