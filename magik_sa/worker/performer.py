"""A performer: one thread, one Session at a time, one database connection of its own."""

from __future__ import annotations

import logging
import threading
from contextvars import copy_context

from sqlalchemy import Engine
from sqlalchemy.orm import Session, scoped_session

from ..claim import Claimed
from ..failure import first_line
from ..job import class_of
from ..job_session import Run
from ..lent import Lent
from ..logs import say
from ..one_exchange import OneExchange
from ..outcome import Outcome
from ..run import run
from ..timeout import Limits
from .letters import Ended
from .locker import Locker

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0  # seconds, after the second run in succession that could not be recorded


class Performer(threading.Thread):
    """The thread `magik-performer-N`. It ends when it is given None, and for nothing that a job does."""

    def __init__(
        self,
        number: int,
        locker: Locker,
        engine: Engine,
        sessions: scoped_session[Session],
        stop: threading.Event,
        limits: Limits,
        in_one: OneExchange,
    ) -> None:
        super().__init__(name=f"magik-performer-{number}", daemon=True)
        self._locker, self._engine, self._sessions, self._end = locker, engine, sessions, stop
        self._limits, self._in_one = limits, in_one
        self._pause = 0.0

    def run(self) -> None:
        # A pool checkout and reset for each job would cost as much as the job. The Connection opens no
        # transaction before the first statement.
        lent = Lent(self._engine, told=True)
        try:
            self._connect(lent)  # before the first job comes; if it cannot be now, then for that
            lives = max(1, self._locker.line.lives)  # its first one is still to come: nothing was lost
            while (claimed := self._locker.work.get()) is not None:
                if lives != self._locker.line.lives:
                    lent.renew()
                lives = self._locker.line.lives
                outcome, took = copy_context().run(self._perform, claimed, lent)  # what a job sets there ends with it
                self._rest_after(outcome, lent)
                self._locker.mail.put(Ended(claimed, outcome, took))
        finally:
            lent.close()

    def _perform(self, claimed: Claimed, lent: Lent) -> tuple[Outcome, float]:
        """Run the job, once there is a way to record how it ends.

        For one without a Session that is the locking connection, as a rule. Its thread's own is not looked at: each
        look gives the interpreter away, which costs as much as such a job.
        """
        looks = not (lent.is_open() and class_of(claimed.row["job_class"]).__magik__.alone)
        if looks and not self._connect(lent):
            return Outcome.UNRECORDED, 0.0
        this = self._run_of(claimed, lent)
        outcome = run(this)
        this.error = None  # its traceback leads to this run, and what both hold would wait for the garbage collector
        return outcome, this.took

    def _connect(self, lent: Lent) -> bool:
        try:
            lent.take()
        except Exception as error:
            say(logging.ERROR, "performer_not_connected", thread=self.name, error=first_line(error))
            return False
        return True

    def _rest_after(self, outcome: Outcome, lent: Lent) -> None:
        """What keeps this thread from recording an outcome may keep it from the next: it tries on, slowly, and anew.

        It keeps the job meanwhile, so that the locker gives this thread nothing else to do.
        """
        if outcome is not Outcome.UNRECORDED:
            self._pause = 0.0
            return
        lent.renew()
        self._end.wait(self._pause)
        self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)

    def _run_of(self, claimed: Claimed, lent: Lent) -> Run:
        def lost() -> bool:
            return not self._locker.book.has_lock(claimed)

        stopping = self._end.is_set
        together = self._locker.completer.takes(claimed)
        return Run(
            claimed,
            lent.take,
            self._sessions,
            stopping,
            self._limits,
            using=lent.lend,
            renew=lent.renew,
            lost=lost,
            in_one=self._in_one,
            together=together,
        )
