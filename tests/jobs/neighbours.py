"""Jobs that leave something behind in their process, and one that looks what it finds."""

from __future__ import annotations

import decimal
import logging
import os
import sys
from contextvars import ContextVar

from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, arg
from tests.tools.effects import record

tenant: ContextVar[str] = ContextVar("tenant", default="none")


class Tidy(Job, policy="system"):
    """Tells what surrounds it."""

    said: Mapped[str] = arg(default="")

    def perform(self, session: Session) -> None:
        record(self, f"{tenant.get()} {decimal.getcontext().prec}")


class Untidy(Job, policy="system"):
    """Says for whom it works and how exactly it counts, and takes nothing of it back."""

    def perform(self, session: Session) -> None:
        tenant.set("acme")
        decimal.getcontext().prec = 3


class ClosesStderr(Job, policy="system"):
    """Does what a daemon does when it starts."""

    retries = Retries(times=0)

    def perform(self, session: Session) -> None:
        sys.stderr.close()
        raise RuntimeError("closed")


class TidyAlone(Job, policy="system"):
    """Takes no Session, and may fail all the same."""

    retries = Retries(times=0)
    fails: Mapped[bool] = arg(default=False)

    def perform(self) -> None:
        record(self)
        if self.fails:
            raise RuntimeError("as told")


class WritesToStreams(Job, policy="system"):
    """As a library in C does, which asks nobody whether they are open."""

    retries = Retries(times=0)

    def perform(self, session: Session) -> None:
        os.write(1, b"written\n")
        os.write(2, b"written\n")


class ClosesDescriptors(Job, policy="system"):
    """The same, more thoroughly."""

    def perform(self, session: Session) -> None:
        os.closerange(3, 256)


class Wordy(Job, policy="system"):
    """Fails in characters that not every encoding has."""

    retries = Retries(times=0)

    def perform(self, session: Session) -> None:
        raise RuntimeError("caf\u00e9 \U0001f600")


class NeedsARequest(logging.Filter):
    """As for a web application's log."""

    def filter(self, record: logging.LogRecord) -> bool:
        return bool(record.request_id)  # type: ignore[attr-defined]


if os.environ.get("REQUESTS_ONLY"):
    handler = logging.StreamHandler()
    handler.addFilter(NeedsARequest())
    logging.basicConfig(handlers=[handler], level=logging.INFO)
