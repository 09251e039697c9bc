"""Whether the worker lives, and whether it can take jobs: what a supervisor asks, told without asking anybody."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from ..errors import BootError, MagikError
from ..settings import Settings
from .health import Health, listen
from .locker import Locker

LATE: Final = 3.0  # seconds by which the locker may be late for its next turn


class Condition:
    """What is known of the worker's threads. Read by the thread `magik-health`, if there is one."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._threads: Sequence[threading.Thread] = ()
        self._locker: Locker | None = None
        self._health: Health | None = None

    def serve(self, settings: Settings) -> list[MagikError]:
        """Begin to answer, where a port is given for it; what stands against that."""
        if settings.health_port is None:
            return []
        try:
            listening = listen(settings.health_host, settings.health_port)
        except BootError as error:
            return [error]
        self._health = Health(listening, {"/live": self.live, "/ready": self.ready})
        self._health.start()
        return []

    def leave(self) -> None:
        """Answer nobody any more."""
        if self._health is not None:
            self._health.stop()

    @property
    def address(self) -> str | None:
        """Where it can be asked."""
        return None if self._health is None else self._health.address

    def watch(self, locker: Locker, threads: Sequence[threading.Thread]) -> None:
        """From now on these are the worker."""
        self._locker, self._threads = locker, threads

    def live(self) -> tuple[bool, dict[str, Any]]:
        """No thread has ended but at a stop. Nothing of the database: another process would find the same one."""
        started = [thread for thread in self._threads if thread.ident is not None]
        alive = [thread.name for thread in started if thread.is_alive()]
        dead = [] if self._stop.is_set() else [thread.name for thread in started if not thread.is_alive()]
        return not dead, {"live": not dead, "threads": len(alive), "dead": dead}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether what is enqueued now would be claimed."""
        why = self._unready()
        return why is None, {"ready": why is None, "why": why}

    def _unready(self) -> str | None:
        locker = self._locker
        if self._stop.is_set():
            return "draining"
        if locker is None or not locker.ready.is_set():
            return "starting"
        if not locker.line.is_open():
            return "no locking connection"
        return "the database does not answer" if locker.seconds_late() > LATE else None
