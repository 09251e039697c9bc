"""The watchdog: interrupts what is over its limit, and looks once a second after the worker's own connections."""

from __future__ import annotations

import logging
import threading
import time

from ..logs import say
from ..timeout import Limits
from .locker import Locker
from .maintenance import Maintenance
from .scheduler import Scheduler

LOOK_EVERY = 1.0  # seconds


class Watchdog(threading.Thread):
    """The thread `magik-watchdog`. Ends when it is told to; waits for no answer of anybody's."""

    def __init__(
        self,
        locker: Locker,
        limits: Limits,
        scheduler: Scheduler | None = None,
        maintenance: Maintenance | None = None,
    ) -> None:
        super().__init__(name="magik-watchdog", daemon=True)
        self._locker, self._limits, self._end = locker, limits, threading.Event()
        self._scheduler, self._maintenance = scheduler, maintenance

    def run(self) -> None:
        look_at = time.monotonic() + LOOK_EVERY
        while not self._end.is_set():
            self._limits.sleep(max(0.0, look_at - time.monotonic()))
            self._limits.enforce()
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + LOOK_EVERY
                self._look()

    def _look(self) -> None:
        if self._locker.line.hang_up_if_silent():
            say(logging.WARNING, "locking_connection_silent")
        if self._scheduler is not None and self._scheduler.hang_up_if_silent():
            say(logging.WARNING, "scheduler_silent")
        if self._maintenance is not None and self._maintenance.hang_up_if_silent():
            say(logging.WARNING, "maintenance_silent")

    def stop(self) -> None:
        """End, and return when it has ended."""
        self._end.set()
        self._limits.wake()
        self.join()
