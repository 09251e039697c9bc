"""One of so many places for a process: who is there, or the pause until the next one is."""

from __future__ import annotations

import logging
import random
import signal
import time
from typing import Any, Final

from ..logs import say
from .child import Child
from .ending import DEADLINE, DRAINED, LOST, REFUSED

SHORTEST_PAUSE: Final = 1.0  # seconds before a process is replaced
LONGEST_PAUSE: Final = 30.0
# How a process ends that a signal meets while it starts, with nothing to lose (1: while the interpreter does). Any
# other end tells of work, also where the process had no time to say that it had booted.
BEFORE_IT_WORKED: Final = {1, REFUSED, -signal.SIGTERM, -signal.SIGINT}


class Seat:
    """The supervisor sees to each in turn. The pauses grow until a process has been ready for long enough."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self.child: Child | None = None
        self._pause, self._due = SHORTEST_PAUSE, 0.0

    def tend(self) -> int | None:
        """Start a process when that is due, or talk with it; how it has ended, if it has."""
        if self.child is not None:
            self.child.converse()
            return self.child.ended()
        if time.monotonic() >= self._due:
            self._start()
        return None

    def vacate(self, code: int) -> None:
        """Its process has ended, which nobody asked for: another one follows."""
        if self.child is not None:
            pause = self._rest(self.child.settled)
            say(logging.WARNING, "process_ended", pid=self.child.pid, **how(code), next_try_s=pause)
        self.child = None

    def leave(self) -> int | None:
        """While all drain: what the end of its process counts for, when it has come; nobody follows."""
        if (child := self.child) is None:
            return None
        child.converse()
        if (code := child.ended()) is None:
            return None
        self.child = None
        if code == DRAINED or (code in BEFORE_IT_WORKED and not child.booted):
            return DRAINED
        say(logging.WARNING, "process_ended", pid=child.pid, **how(code))
        return DEADLINE if code == DEADLINE else LOST

    def patience(self) -> float:
        """Seconds until it has to be tended again, unless its process says something before."""
        return max(0.0, self._due - time.monotonic()) if self.child is None else self.child.patience()

    def why(self) -> str | None:
        """Why not all that is enqueued now would be claimed here; read by the thread `magik-health`."""
        if (child := self.child) is None:
            return "a process is started again" if self._due else "starting"
        why = "does not answer" if child.silent() else child.said.get("why", "starting")
        return why and f"process {child.pid}: {why}"

    def dead(self) -> list[str]:
        """What has ended in a process that is there, or that it does not answer; read by the thread `magik-health`."""
        if (child := self.child) is None:
            return []
        dead = [*child.said.get("dead", ()), *(["does not answer"] if child.silent() else [])]
        return [f"process {child.pid}: {what}" for what in dead]

    def _start(self) -> None:
        child = Child(self._words)
        try:
            child.start()
        except OSError as error:
            said = f"{type(error).__name__}: {error}"
            say(logging.WARNING, "process_not_started", error=said, next_try_s=self._rest(settled=False))
            return
        if self._due:  # it is not the first one here
            say(logging.INFO, "process_started", pid=child.pid)
        self.child = child

    def _rest(self, settled: bool) -> float:
        """A pause begins, and twice as long a one the next time; so many seconds, with jitter."""
        pause = SHORTEST_PAUSE if settled else self._pause
        self._pause = min(pause * 2, LONGEST_PAUSE)
        pause *= random.uniform(0.8, 1.2)
        self._due = time.monotonic() + pause
        return round(pause, 2)


def how(code: int) -> dict[str, Any]:
    """How a process has ended: its exit code, or the name of the signal that killed it."""
    names = {each.value: each.name for each in signal.Signals}
    return {"exit_code": code} if code >= 0 else {"signal": names.get(-code, str(-code))}
