"""Our jobs, as an application would write them: one class for each kind of the contract."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, Final

import psycopg
from sqlalchemy.orm import Mapped, Session

from benchmarks import tables
from benchmarks.contract import INSERT, SLEEP, Recorder
from magik_sa import Job, arg

record: Final = Recorder(os.environ.get("BENCH_RECORD", os.devnull))

# The documented way to hear of failures only: peers, too, run without a line for each job.
logging.getLogger("magik_sa").setLevel(os.environ.get("BENCH_LOG", "WARNING"))


class Noop(Job, policy="system"):
    """Records its start."""

    seq: Mapped[int] = arg()

    def perform(self) -> None:
        record(self.seq)


class Adding(Job, policy="system"):
    """One row by `session.add`, in the transaction that ends the job."""

    seq: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        record(self.seq)
        tables.add(session, self.seq)


class Executing(Job, policy="system"):
    """One row by `session.execute(insert())`, in the transaction that ends the job."""

    seq: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        record(self.seq)
        tables.execute(session, self.seq)


class Driving(Job, policy="system"):
    """One row as peers' jobs insert theirs: by the driver, on a connection of its own, and not in one commit."""

    seq: Mapped[int] = arg()

    def perform(self) -> None:
        record(self.seq)
        own().execute(INSERT, (self.seq,))


def own() -> psycopg.Connection[tuple[Any, ...]]:
    """This thread's."""
    if not hasattr(_of_thread, "connection"):
        _of_thread.connection = psycopg.connect(os.environ["BENCH_DSN"], autocommit=True)
    connection: psycopg.Connection[tuple[Any, ...]] = _of_thread.connection
    return connection


_of_thread: Final = threading.local()


class Sleeping(Job, policy="system"):
    """Holds a thread."""

    seq: Mapped[int] = arg()

    def perform(self) -> None:
        record(self.seq)
        time.sleep(SLEEP)


class Timed(Job, policy="system"):
    """Records when the transaction that enqueued it began. It has no number, so it has that of its id."""

    def perform(self, session: Session) -> None:  # noqa: ARG002 - as every job
        record(self.id.int, int(self.enqueued_at.timestamp() * 1e6) * 1_000)


KINDS: Final = {"noop": Noop, "add": Adding, "db": Executing, "own": Driving, "sleep": Sleeping}
