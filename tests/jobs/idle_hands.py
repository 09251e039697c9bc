"""Jobs that use their Session, or leave it alone, in every way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import Engine, NullPool, create_engine, event, text
from sqlalchemy.orm import Mapped, Session, scoped_session

from magik_sa import Discard, Job, Retries, Snooze, arg


class Untouched(Job, policy="system"):
    """Has a Session and leaves it alone."""

    def perform(self, session: Session) -> None: ...


class UntouchedKept(Job, policy="system"):
    keep = "1d"

    def perform(self, session: Session) -> None: ...


class Touched(Job, policy="system"):
    """Uses its Session in one of these ways."""

    how: Mapped[str] = arg()

    def perform(self, session: Session) -> None:
        WAYS[self.how](self, session)


class OfAKey(Job, policy="system"):
    """Adds the next of its own key."""

    idempotent_by = "key"
    key: Mapped[int] = arg()
    last: Mapped[bool] = arg(default=False)

    def perform(self, session: Session) -> None:
        if not self.last:
            session.add(OfAKey(key=self.key, last=True))


def another(session: Session) -> Engine:
    """Nobody asks the Session which it is."""
    assert isinstance(session.bind, Engine)
    return create_engine(session.bind.url, poolclass=NullPool)


WAYS: dict[str, Callable[[Any, Session], object]] = {
    "reads": lambda _, session: session.scalar(text("SELECT 1")),
    "adds": lambda _, session: session.add(Untouched(delay="1h")),
    "asks for the connection": lambda _, session: session.connection(),
    "changes itself": lambda job, _: setattr(job, "priority", 7),
    "waits for the commit": lambda _, session: event.listen(session, "after_commit", lambda _: None),
    "looks before the commit": lambda _, session: event.listen(session, "before_commit", lambda _: None),
    "names another database": lambda _, session: session.connection(bind_arguments={"bind": another(session)}),
    "commits in its own way": lambda _, session: setattr(session, "commit", partial(session.commit)),
}

joined: list[Session] = []  # of a job's own, and left open
asked: list[scoped_session[Session]] = []  # an application's registry, where there is one


class Alone(Job, policy="system"):
    """Takes no Session."""

    retries = Retries(times=1, backoff="constant", base="10m", jitter=0)
    how: Mapped[str] = arg(default="")

    def perform(self) -> None:
        match self.how:
            case "fails":
                raise ValueError("alone")
            case "spoils itself and fails":
                self.queue = "spoilt"
                self.last_error = "\0"
                raise ValueError("alone")
            case "snoozes":
                raise Snooze("5m")
            case "discards":
                raise Discard("enough")
            case "changes itself":
                self.priority = 7
            case "asks":
                asked[0].execute(text("UPDATE magik_jobs SET priority = 9 WHERE job_class = 'Untouched'"))
            case "does not fit":
                raise AssertionError("its arguments are read before")


class Noting(Job, policy="system"):
    """Takes no Session, and notes in an argument what it has done."""

    done: Mapped[list[int]] = arg(default_factory=list)
    more: Mapped[bool] = arg(default=True)

    def perform(self) -> None:
        assert self.done == []
        if self.more:
            self.done.append(1)
            raise Snooze("5m")


class Joining(Job, policy="system"):
    """Takes no Session, and puts itself into one that it leaves open."""

    fails: Mapped[bool] = arg()

    def perform(self) -> None:
        joined.append(Session())
        joined[-1].add(self)
        self.priority = 7
        if self.fails:
            raise ValueError("joined")
