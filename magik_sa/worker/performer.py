"""A performer: one thread, one Session at a time, one database connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from ..job_session import Run
from ..readable import readable
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
        with self._engine.connect() as connection:
            lives = max(1, self._locker.line.lives)  # its first one is still to come: nothing was lost
            while (claimed := self._locker.work.get()) is not None:
                if lives != self._locker.line.lives or is_dead(connection):
                    connection.invalidate()
                lives = self._locker.line.lives
                outcome = run(Run(claimed, connection, self._sessions, self._stopping, self._limits))
                self._locker.mail.put(Ended(claimed, outcome))


def is_dead(connection: Connection) -> bool:
    """Whether the server went away while this Connection was idle; it connects anew once it is invalidated.

    An idle connection has nothing to read; a lost one has the server's last word, or its end. Looking costs no
    round trip, and saves the next job from failing for what happened before it. (What has gone silent shows
    nothing: when the locking connection was lost, all of them are made anew.)
    """
    if connection.invalidated:
        return False
    socket: Any = connection.connection.dbapi_connection
    if socket is None:
        return True
    return bool(readable([socket], 0))
