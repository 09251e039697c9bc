"""A performer: one thread, one Session at a time, one database connection of its own."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from ..claim import Claimed
from ..run import Run, run
from .locker import Ended, Mail


class Performer(threading.Thread):
    """The thread `magik-performer-N`. It ends when it is given None, and for nothing that a job does."""

    def __init__(
        self,
        number: int,
        work: SimpleQueue[Claimed | None],
        mail: Mail,
        engine: Engine,
        sessions: scoped_session[Session],
        stopping: Callable[[], bool],
    ) -> None:
        super().__init__(name=f"magik-performer-{number}", daemon=True)
        self._work, self._mail, self._engine, self._sessions, self._stopping = work, mail, engine, sessions, stopping

    def run(self) -> None:
        # A pool checkout and reset for each job would cost as much as the job. The Connection opens no
        # transaction before the first statement.
        with self._engine.connect() as connection:
            while (claimed := self._work.get()) is not None:
                renew_if_dead(connection)
                outcome = run(Run(claimed, connection, self._sessions, self._stopping))
                self._mail.put(Ended(claimed, outcome))


def renew_if_dead(connection: Connection) -> None:
    """Let a Connection whose server went away while it was idle connect anew at its next statement.

    An idle connection has nothing to read; a lost one has the server's last word, or its end. Looking costs no
    round trip, and saves the next job from failing for what happened before it.
    """
    if connection.invalidated:
        return
    socket: Any = connection.connection.dbapi_connection
    if socket is None or select.select([socket], [], [], 0)[0]:
        connection.invalidate()
