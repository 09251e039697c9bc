"""The watchdog: looks once a second whether the locking connection still gets answers."""

from __future__ import annotations

import logging
import threading

from ..logs import say
from .locker import Locker

LOOK_EVERY = 1.0  # seconds


class Watchdog(threading.Thread):
    """The thread `magik-watchdog`. Ends when it is told to."""

    def __init__(self, locker: Locker) -> None:
        super().__init__(name="magik-watchdog", daemon=True)
        self._locker, self._end = locker, threading.Event()

    def run(self) -> None:
        while not self._end.wait(LOOK_EVERY):
            if self._locker.line.hang_up_if_silent():
                say(logging.WARNING, "locking_connection_silent")

    def stop(self) -> None:
        """End, and return when it has ended; it waits for nothing itself."""
        self._end.set()
        self.join()
