"""Jobs that fork, and children that use what they inherited, end, or outlive the worker."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time

from sqlalchemy import text
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, arg
from tests.tools.effects import effect, record


def in_child(engine_of: Session, how: str) -> None:
    """What the child does with the engine of the jobs."""
    engine = engine_of.get_bind().engine
    if how in ("uses", "disposes"):
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO notes VALUES ('of the child')"))
    if how == "disposes":
        engine.dispose()
    if how == "speaks":
        engine_of.execute(text("SELECT 1"))  # on the parent's connection: it is cut off here
    if how == "raises":
        raise RuntimeError("of the child")
    if how == "exits":
        sys.exit(0)


class Forking(Job, policy="system"):
    """Forks, lets the child do something and end, and goes on in its own transaction."""

    retries = Retries(times=0)
    how: Mapped[str] = arg()

    def perform(self, session: Session) -> None:
        with effect(self, self.how):
            session.execute(text("INSERT INTO notes VALUES ('of the job')"))
            child = os.fork()
            if child == 0:
                in_child(session, self.how)
                return
            _, status = os.waitpid(child, 0)
            session.execute(
                text("INSERT INTO notes VALUES (:note)"), {"note": f"child {os.waitstatus_to_exitcode(status)}"}
            )


class Spawning(Job, policy="system"):
    """The same with multiprocessing."""

    how: Mapped[str] = arg()

    def perform(self, session: Session) -> None:
        with effect(self, self.how):
            session.execute(text("INSERT INTO notes VALUES ('of the job')"))
            child = multiprocessing.get_context("fork").Process(target=in_child, args=(session, self.how))
            child.start()
            child.join()
            session.execute(text("INSERT INTO notes VALUES (:note)"), {"note": f"child {child.exitcode}"})


class Leaving(Job, policy="system"):
    """Locks a row, and leaves a child behind that lives on for `seconds`. Run again it leaves none."""

    seconds: Mapped[float] = arg()

    def perform(self, session: Session) -> None:
        with effect(self, f"attempt {self.error_count + 1}"):
            session.execute(text("UPDATE notes SET what = what || '!'"))
            if self.error_count == 0:
                if os.fork() == 0:
                    os.setsid()  # not in the worker's group: the test kills that
                    record(self, f"child {os.getpid()}")
                    time.sleep(self.seconds)
                    return
                time.sleep(60)


class AfterFork(Job, policy="system"):
    """Shows that the worker is well."""

    def perform(self, session: Session) -> None:
        session.execute(text("SELECT 1"))
        record(self)


class Idle(Job, policy="system"):
    """Has a child that waits for the end of its group."""

    def perform(self, session: Session) -> None:
        with effect(self):
            child = os.fork()
            if child == 0:
                record(self, "child")
                time.sleep(60)
                return
            _, status = os.waitpid(child, 0)
            record(self, f"child {os.waitstatus_to_exitcode(status)}")
