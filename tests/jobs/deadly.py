"""A job that takes its process with it, in several ways, and healthy ones beside it."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time

from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, arg
from tests.tools.effects import effect, record
from tests.tools.noted import wait_until_noted


class Healthy(Job, policy="system"):
    """Runs beside it, and may be killed with it."""

    retries = Retries(times=5, backoff="constant", base="50ms", jitter=0)

    def perform(self, session: Session) -> None:
        with effect(self, f"attempt {self.error_count + 1}"):
            time.sleep(0.2)


class Deadly(Job, policy="system", priority=1):
    """Ends its process after a while."""

    retries = Retries(times=2, backoff="constant", base="50ms", jitter=0)
    how: Mapped[str] = arg()

    def perform(self, session: Session) -> None:
        record(self, f"attempt {self.error_count + 1}")
        wait_until_noted(self)  # a start that is not noted as begun is not counted
        getattr(self, f"_{self.how}")()

    def _exit(self) -> None:
        os._exit(1)

    def _segfault(self) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.string_at(0)

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _memory(self) -> None:
        """Out of memory under a limit: what is left over for the interpreter is too little to go on with."""
        limit = 600 * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        hoard = []
        try:
            while True:
                hoard.append(bytearray(1024 * 1024))
        except MemoryError:
            os.abort()


class DeadlyOnce(Deadly, policy="system", name="DeadlyOnce"):
    """Has one start."""

    retries = Retries(times=0)
    how: Mapped[str] = arg()


class DeadlyAtOnce(Job, policy="system", priority=1):
    """Ends its process before it is known to have begun, and has one start."""

    retries = Retries(times=0)

    def perform(self, session: Session) -> None:
        record(self)
        os._exit(1)


class Frail(Job, policy="system"):
    """Has no try to lose."""

    retries = Retries(times=0)

    def perform(self, session: Session) -> None:
        with effect(self):
            time.sleep(0.03)


class Swift(Job, policy="system"):
    """Has no try to lose, and ends so soon that a worker claims it with many others."""

    retries = Retries(times=0)

    def perform(self, session: Session) -> None:
        pass
