"""Jobs that do their worst to the worker that runs them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, arg
from tests.tools.effects import record
from tests.tools.noted import wait_until_noted

FOLDER = Path(__file__).parent


class PoisonMarker(Job, policy="system"):
    """Shows that the worker still works."""

    def perform(self, session: Session) -> None:
        record(self)


class KillsItsProcess(Job, policy="system"):
    """Works until it is noted as begun, or not so long, then takes its whole process with it."""

    retries = Retries(times=2, backoff="constant", base="50ms", jitter=0)
    noted: Mapped[bool] = arg()

    def perform(self, session: Session) -> None:
        record(self, f"attempt {self.error_count + 1}")
        if self.noted:
            wait_until_noted(self)
        os.kill(os.getpid(), signal.SIGKILL)


class Untext(Exception):
    """Has no text that could be made."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Raises(Job, policy="system"):
    """Raises what no net is expected to catch."""

    retries = Retries(times=1, backoff="constant", base="50ms", jitter=0)
    what: Mapped[str] = arg()

    def perform(self, session: Session) -> None:
        record(self, self.what)
        getattr(self, f"_{self.what}")()

    def _sys_exit(self) -> None:
        raise SystemExit(3)

    def _keyboard_interrupt(self) -> None:
        raise KeyboardInterrupt

    def _generator_exit(self) -> None:
        raise GeneratorExit

    def _syntax_error(self) -> None:
        exec(compile("def broken(:\n    pass\n", str(FOLDER / "lazily_loaded.py"), "exec"))

    def _recursion_error(self) -> None:
        self._recursion_error()

    def _memory_error(self) -> None:
        raise MemoryError("by hand")

    def _nul(self) -> None:
        raise RuntimeError("a\x00b")

    def _lone_surrogate(self) -> None:
        raise RuntimeError("\ud800")

    def _surrogateescape(self) -> None:
        raise RuntimeError(b"caf\xe9".decode("utf-8", "surrogateescape"))

    def _no_text(self) -> None:
        raise Untext

    def _huge(self) -> None:
        raise RuntimeError("x" * 60_000_000)


class Savepoints(Job, policy="system"):
    """Changes itself inside a savepoint, or before one that is rolled back, and then fails or ends well."""

    retries = Retries(times=1, backoff="constant", base="50ms", jitter=0)
    way: Mapped[str] = arg()
    cursor: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        record(self, self.way)
        getattr(self, f"_{self.way}")(session)

    def _fail_after_release(self, session: Session) -> None:
        with session.begin_nested():
            self.cursor += 1
        raise RuntimeError("as asked")

    def _fail_after_rollback_to(self, session: Session) -> None:
        self._end_after_rollback_to(session)
        raise RuntimeError("as asked")

    def _end_after_release(self, session: Session) -> None:
        with session.begin_nested():
            self.cursor += 1

    def _end_after_rollback_to(self, session: Session) -> None:
        self.cursor += 1
        session.flush()
        savepoint = session.begin_nested()
        self.cursor += 1
        session.flush()
        savepoint.rollback()

    def _end_after_untouched_rollback_to(self, session: Session) -> None:
        self.cursor += 1
        session.flush()
        savepoint = session.begin_nested()
        session.execute(text("SELECT 1"))
        savepoint.rollback()

    def _end_after_two_levels(self, session: Session) -> None:
        with session.begin_nested():
            self.cursor += 1
            inner = session.begin_nested()
            self.cursor += 1
            session.flush()
            inner.rollback()
            self.cursor += 1

    def _end_after_a_commit_in_between(self, session: Session) -> None:
        with session.begin_nested():
            self.cursor += 1
        session.commit()
        savepoint = session.begin_nested()
        self.cursor += 1
        session.flush()
        savepoint.rollback()
        self.cursor += 1
