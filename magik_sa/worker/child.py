"""One of several processes, from its start to its end, as the supervisor sees it."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from typing import Any, Final

from .tie import ASK, STOP

ASK_EVERY: Final = 1.0  # seconds between an answer and the next question
LOOK_EVERY: Final = 0.1  # seconds until then while it is not ready
SILENT: Final = 5.0  # seconds without an answer
SETTLED: Final = 60.0  # seconds for which it has to be ready to count as one that works


def program() -> list[str]:
    """This interpreter with its own flags. That output is unbuffered is not among those that Python knows to repeat."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    unbuffered = ["-u"] if getattr(sys.stdout, "write_through", False) else []
    return [sys.executable, *flags, *unbuffered, "-m", "magik_sa.worker"]


class Child:
    """A process of the worker's, told these words. The tie is None when it is closed at either end."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self.tie: socket.socket | None = None
        self.said: dict[str, Any] = {}  # its last answer
        self.settled = False
        self._heard, self._ask_at = b"", 0.0
        self._asked_at: float | None = None
        self._ready_since: float | None = None

    def start(self) -> None:
        """Start it. It has no more of ours than its end of the tie, and where we write to.

        Raises OSError where the system starts none.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            try:
                command = [*program(), f"--supervised={number}", *self._words]
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[number])
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self.tie = ours

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ended(self) -> int | None:
        """Its exit code, or the number of the signal that killed it, below zero; None while it runs."""
        code = self._process.poll()
        if code is not None:
            self._untie()
        return code

    @property
    def booted(self) -> bool:
        """Whether it has proved that it can work."""
        return self.said.get("connections") is not None

    def silent(self) -> bool:
        """Whether it has once answered, and does not any more."""
        asked_at = self._asked_at
        return bool(self.said) and asked_at is not None and time.monotonic() - asked_at > SILENT

    def patience(self) -> float:
        """Seconds until it is to be looked at, unless it says something before."""
        if self.tie is None:
            return LOOK_EVERY
        return ASK_EVERY if self._asked_at is not None else max(0.0, self._ask_at - time.monotonic())

    def converse(self) -> None:
        """Hear what it has answered, and ask again when that is due."""
        try:
            with contextlib.suppress(BlockingIOError):  # it has said nothing
                self._hear()
            self._ask()
        except (OSError, EOFError, ValueError):  # it has ended, or a job has closed what was not its own
            self._untie()

    def stop(self) -> None:
        """Tell it to stop, as a first or a second signal does; by a signal where it hears nothing else any more.

        Also one that has not answered yet: it hears that as soon as it listens. A signal would be its second where the
        whole group has had the first, and it may have jobs in hand by then.
        """
        try:
            if self.tie is not None:
                self.tie.send(STOP)
                return
        except OSError:
            self._untie()
        self._process.terminate()

    def kill(self) -> None:
        """End it at once, and see it end, unless the system holds it."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)

    def _ask(self) -> None:
        if self.tie is not None and self._asked_at is None and time.monotonic() >= self._ask_at:
            self.tie.send(ASK)
            self._asked_at = time.monotonic()

    def _hear(self) -> None:
        if self.tie is None:
            return
        heard = self.tie.recv(65536)
        if not heard:
            raise EOFError
        self._heard += heard
        if self._heard.endswith(b"\n"):
            self.said, self._heard, self._asked_at = json.loads(self._heard), b"", None
            self._judge(time.monotonic())

    def _judge(self, now: float) -> None:
        ready = bool(self.said["ready"])
        self._ready_since = (self._ready_since or now) if ready else None
        self.settled |= self._ready_since is not None and now - self._ready_since >= SETTLED
        self._ask_at = now + (ASK_EVERY if ready else LOOK_EVERY)

    def _untie(self) -> None:
        if self.tie is not None:
            self.tie.close()
            self.tie = None
