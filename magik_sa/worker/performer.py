"""A performer: one thread, one Session at a time, one database connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sqlalchemy import Engine
from sqlalchemy.orm import Session, scoped_session

from ..claim import Claimed
from ..job_session import Run
from ..lent import Lent
from ..run import run
from ..timeout import Limits
from .letters import Ended
from .locker import Locker


class Performer(threading.Thread):
    """The thread `magik-performer-N`. It ends when it is given None, and for nothing that a job does."""

    def __init__(
        self,
        number: int,
        locker: Locker,
        engine: Engine,
        sessions: scoped_session[Session],
        stopping: Callable[[], bool],
        limits: Limits,
    ) -> None:
        super().__init__(name=f"magik-performer-{number}", daemon=True)
        self._locker, self._engine, self._sessions, self._stopping = locker, engine, sessions, stopping
        self._limits = limits

    def run(self) -> None:
        # A pool checkout and reset for each job would cost as much as the job. The Connection opens no
        # transaction before the first statement.
        lent = Lent(self._engine)
        try:
            lives = max(1, self._locker.line.lives)  # its first one is still to come: nothing was lost
            while (claimed := self._locker.work.get()) is not None:
                if lives != self._locker.line.lives or lent.is_dead():
                    lent.renew()
                lives = self._locker.line.lives
                self._locker.mail.put(Ended(claimed, run(self._run_of(claimed, lent))))
        finally:
            lent.close()

    def _run_of(self, claimed: Claimed, lent: Lent) -> Run:
        def lost() -> bool:
            return not self._locker.book.has_lock(claimed)

        return Run(claimed, lent.take, self._sessions, self._stopping, self._limits, lost=lost)
