"""Job classes whose schedules the environment declares: how many, how often, and some that fail or are slow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, Schedule, arg
from tests.tools.effects import record

MANY = int(os.environ.get("TICKING", "1"))
EVERY = os.environ.get("TICKING_EVERY", "1h")


class Ticking(Job, policy="system"):
    """Records which of its schedules made it."""

    schedule = tuple(Schedule(every=EVERY, name=f"n{n}", args={"number": n}) for n in range(MANY))

    number: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        record(self, str(self.number))


class FiveMinutely(Job, policy="system"):
    """On the five minutes, where CRON is set."""

    schedule = Schedule(cron="*/5 * * * *", zone="UTC") if os.environ.get("CRON") else None

    def perform(self, session: Session) -> None:
        record(self)


class Slow(Job, policy="system"):
    """Its on_schedule takes as many seconds as SLOW says, in SQL or not (SLOW_IN=python), or until it gets a lock."""

    retries = Retries(timeout=os.environ.get("SLOW_LIMIT"))
    schedule = Schedule(every="1h") if os.environ.get("SLOW") else None

    def perform(self, session: Session) -> None:
        record(self)

    @classmethod
    def on_schedule(cls, session: Session) -> Iterable[Any]:
        session.execute(text("SELECT set_config('application_name', 'slow', true)"))
        if os.environ.get("SLOW_IN") == "python":
            end = time.monotonic() + float(os.environ["SLOW"])
            while time.monotonic() < end:
                time.sleep(0.01)
        elif os.environ.get("SLOW_IN") == "lock":
            session.execute(text("SELECT pg_advisory_xact_lock(0, 0)"))
        else:
            session.execute(text("SELECT pg_sleep(:seconds)"), {"seconds": float(os.environ["SLOW"])})
        yield cls()


class Fanned(Job, policy="system"):
    """Made by the schedule of another class; at most one live job a number."""

    idempotent_by = "number"
    number: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        record(self, str(self.number))


class Fanning(Job, policy="system"):
    """Each tick makes a job of its own, and one of another class for every row of `tenants`."""

    schedule = Schedule(every="1h") if os.environ.get("FANNING") else None

    def perform(self, session: Session) -> None:
        record(self)

    @classmethod
    def on_schedule(cls, session: Session) -> Iterable[Any]:
        yield cls()
        for number in session.scalars(text("SELECT number FROM tenants ORDER BY number")):
            yield Fanned(number=number)


# ---- what no schedule should do, each after it has added a job


def raises(_: Session) -> Iterator[Any]:
    """An error whose text is not for the log."""
    yield Ticking(number=-1)
    raise ValueError("s3cret")


def exits(_: Session) -> Iterator[Any]:
    """The end of the process, as it thinks."""
    yield Ticking(number=-1)
    raise SystemExit(3)


def breaks_the_transaction(session: Session) -> Iterator[Any]:
    """An error of the server's, swallowed."""
    try:
        session.execute(text("SELECT 1 / 0"))
    except Exception:
        yield Ticking(number=-1)


def breaks_the_flush(session: Session) -> Iterator[Any]:
    """A row that the table refuses."""
    job = Ticking(number=-1)
    job.args = []  # type: ignore[assignment]
    yield job


def commits(session: Session) -> Iterator[Any]:
    """The claim, and half of the jobs."""
    yield Ticking(number=-1)
    session.commit()
    yield Ticking(number=-1)


def rolls_back(session: Session) -> Iterator[Any]:
    """The claim of the tick goes with it."""
    session.rollback()
    yield Ticking(number=-1)


def closes(session: Session) -> Iterator[Any]:
    """So does it here."""
    session.close()
    yield Ticking(number=-1)


def cuts_its_connection(session: Session) -> Iterator[Any]:
    """And here."""
    session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    yield Ticking(number=-1)


def yields_a_number(_: Session) -> Iterator[Any]:
    """No job."""
    yield 5


def gives_nothing(_: Session) -> Any:
    """A forgotten yield."""


def gives_a_class(_: Session) -> Any:
    """A forgotten pair of brackets."""
    return [Ticking]


KINDS = (
    *(raises, exits, breaks_the_transaction, breaks_the_flush, commits, rolls_back, closes),
    *(cuts_its_connection, yields_a_number, gives_nothing, gives_a_class),
)
BY_NAME: dict[str, Any] = {kind.__name__: kind for kind in KINDS}


class Stumbling(Job, policy="system"):
    """Its schedules fail, each in its own way (FAILING=1) or one of them, until there is a table `mended`."""

    schedule = tuple(
        Schedule(every=os.environ.get("FAILING_EVERY", "1h"), name=kind, args={"kind": kind})
        for kind in BY_NAME
        if os.environ.get("FAILING") in (kind, "1")
    )

    def perform(self, session: Session) -> None:
        record(self)

    @classmethod
    def on_schedule(cls, session: Session, kind: str = "") -> Iterable[Any]:
        if session.scalar(text("SELECT to_regclass('mended') IS NOT NULL")):
            return [cls()]
        session.add(Ticking(number=-1))
        session.flush()
        given: Iterable[Any] = BY_NAME[kind](session)
        return given
