"""Several processes of the worker under one: it starts them, replaces those that end, and drains them all.

It imports neither the application nor SQLAlchemy and has no connection, so that it does not fall with what it looks
after. The first process boots alone: what keeps it from working is said once, and is the supervisor's end (2).
"""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import Any, Final, NoReturn

from ..errors import BootError
from ..logs import say, to_stderr
from ..readable import readable
from ..settings import Settings
from .child import LOOK_EVERY, Child
from .ending import DEADLINE, DRAINED, LOST, REFUSED, end, failed, refuse, tell
from .seat import Seat
from .signals import Signals

GRACE: Final = 5.0  # seconds after the shutdown timeout, or after a second signal, until what is left is killed


def supervise(settings: Settings, words: list[str], signals: Signals) -> NoReturn:
    """Run so many processes as the settings say, each told the same words, until a signal comes."""
    in_json = settings.log_format == "json"
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # some parents leave it ignored, and then no exit code is known
    to_stderr(settings.log_format)
    try:
        supervisor = Supervisor(settings, words, signals)
        supervisor.serve()
        code = supervisor.run()
    except BootError as error:
        refuse([error], in_json)
    except Exception as error:  # the processes notice that their supervisor is gone, and drain
        said = f"{type(error).__name__}: {error}"
        tell(failed(said, None) if in_json else said)
        code = LOST
    end(code)


class Supervisor:
    """Looks after its seats until a signal comes. Its state is read by the thread `magik-health`, if there is one."""

    def __init__(self, settings: Settings, words: list[str], signals: Signals) -> None:
        self._settings, self._signals = settings, signals
        self._seats = [Seat(words) for _ in range(settings.processes)]
        self._address: str | None = None
        self._supervising = self._draining = False

    def serve(self) -> None:
        """Begin to answer, where a port is given for it. Raises `BootError` where that cannot be."""
        if self._settings.health_port is None:
            return
        from .health import Health, listen

        health = Health(
            listen(self._settings.health_host, self._settings.health_port), {"/live": self.live, "/ready": self.ready}
        )
        health.start()
        self._address = health.address

    def run(self) -> int:
        """Until a signal has come and all have ended, or the first one may not start; the exit code."""
        self._signals.arm()
        while not self._stopped(min(seat.patience() for seat in self._tended())):
            for seat in self._tended():
                code = seat.tend()
                if code == REFUSED and not self._supervising:
                    return REFUSED
                if code is not None:
                    seat.vacate(code)
            self._announce()
        return self._drain()

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Nothing has ended in any process but at its end. One that has ended itself is replaced."""
        dead = [] if self._draining else [each for seat in self._seats for each in seat.dead()]
        return not dead, {"live": not dead, "processes": len(self._children()), "dead": dead}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether what is enqueued now would be claimed by any process."""
        why = "draining" if self._draining else next(filter(None, (seat.why() for seat in self._seats)), None)
        return why is None, {"ready": why is None, "why": why}

    def _tended(self) -> list[Seat]:
        """The first alone, until a process has booted."""
        return self._seats if self._supervising else self._seats[:1]

    def _children(self) -> list[Child]:
        return [seat.child for seat in self._seats if seat.child is not None]

    def _stopped(self, seconds: float) -> bool:
        """Wait for a signal, or until a process has something to say or to be asked; whether it was a signal."""
        readable([self._signals, *(child.tie for child in self._children() if child.tie)], seconds)
        return self._signals.wait(0)

    def _announce(self) -> None:
        """Once the first process has booted."""
        child = self._seats[0].child
        if not self._supervising and child is not None and child.booted:
            self._supervising = True
            count = self._settings.processes
            sum_ = count * child.said["connections"]
            say(logging.INFO, "supervising", pid=os.getpid(), processes=count, connections=sum_, health=self._address)

    def _drain(self) -> int:
        """Tell all to stop, and again at a further signal; the worst of how they ended.

        When the time is up it is looked once more: where the supervisor was frozen they may have ended in time.
        """
        self._draining = True
        deadline = time.monotonic() + self._settings.shutdown_timeout.total_seconds() + GRACE
        codes = [DRAINED]
        self._stop()
        late = False
        while self._children() and not late:
            late = time.monotonic() >= deadline
            if self._stopped(0.0 if late else LOOK_EVERY):
                deadline = min(deadline, time.monotonic() + GRACE)
                self._stop()
            codes += [code for seat in self._seats if (code := seat.leave()) is not None]
        for child in self._children():
            say(logging.WARNING, "process_killed", pid=child.pid)
            child.kill()
            codes.append(DEADLINE)
        return max(codes)

    def _stop(self) -> None:
        for child in self._children():
            child.stop()
