"""Jobs that fail, with and without a key."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, arg
from tests.tools.effects import record


class KeyedRetry(Job, policy="system"):
    """Fails as often as it is told, then ends well. At most one live job a number."""

    retries = Retries(times=3, backoff="constant", base="1s", jitter=0)
    idempotent_by = "number"
    keep = "1d"
    number: Mapped[int] = arg()
    failures: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        record(self, f"failed {self.error_count}")
        if self.error_count < self.failures:
            raise ValueError("not yet")


class KeyedPatience(Job, policy="system"):
    """Fails, and is tried again in an hour. At most one live job a number."""

    retries = Retries(times=1, backoff="constant", base="1h", jitter=0)
    idempotent_by = "number"
    number: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        raise ValueError("not for an hour")


class Exponential(Job, policy="system"):
    """Always fails, and is tried again for ever."""

    retries = Retries(times=1_000_000)

    def perform(self, session: Session) -> None:
        raise ValueError


class Linear(Exponential, policy="system"):
    """Its wait is near its cap, but below, for the first numbers."""

    retries = Retries(times=1_000_000, backoff="linear", base="1s", cap="10m", jitter=0.5)


class Computed(Exponential, policy="system"):
    """Its own table of waits cannot tell one beyond a few tries."""

    retries = Retries(times=1_000_000, backoff=lambda tries: f"{2.0**tries}s", cap="30m")


class Grown(Job, policy="system"):
    """Has got one more argument since its rows were written; its on_failure reads it."""

    retries = Retries(times=1, backoff="constant", base="1ms", cap="1ms")
    added: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        record(self)

    def on_failure(self, session: Session, error: BaseException) -> None:
        record(self, "on_failure")
        print(self.added)
