"""SIGTERM and SIGINT from the first instruction of the process to the last.

Until the worker works there is nothing to finish: the process ends at once, with code 0, whatever it is importing.
From then on a signal is a byte in a pipe that the main thread reads. (Not an Event: setting one inside a handler
can deadlock with the wait that it interrupted.)

One of several processes is told to stop by its supervisor, and often by a signal, too: Ctrl-C goes to the whole group,
systemd signals all there are. Both ways are counted apart, so that what came twice is not taken for a second signal.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from collections import Counter
from types import FrameType
from typing import Final

from ..readable import readable

SIGNALLED: Final = b"s"
TOLD: Final = b"t"


class Signals:
    """Stop signals: `install` as early as can be, `arm` when there is something to drain."""

    def __init__(self) -> None:
        _open_closed_streams()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.armed = False
        self._leaving = threading.Lock()  # taken once
        self._came = Counter[bytes]()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._let_go)

    def install(self) -> None:
        """Take both signals over; called again after user code was imported, which may have taken them."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def arm(self) -> None:
        """From now on a signal asks for a drain instead of ending the process."""
        self.install()
        self.armed = True

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for one more stop; whether it came. One that comes both ways is one.

        Raises OSError where the pipe is not ours any more: a job has closed it, and its number may be that of a
        connection by now, which is no reason to drain.
        """
        before = max(self._came.values(), default=0)
        if readable([self], seconds):
            if (way := os.read(self._read, 1)) not in (SIGNALLED, TOLD):
                raise OSError(errno.EBADF, "somebody has closed the pipe of the signals")
            self._came[way] += 1
        return max(self._came.values(), default=0) > before

    def fileno(self) -> int:
        """Has something to read when `wait` has something to say."""
        return self._read

    def told(self) -> None:
        """From another thread: the supervisor asks for what a signal asks for."""
        self._stop(TOLD, "Told to stop")

    def _let_go(self) -> None:
        """What a job forks is no worker: a signal ends it, and is not told to the parent through the pipe."""
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._stop(SIGNALLED, signal.Signals(number).name)

    def _stop(self, way: bytes, who: str) -> None:
        if self.armed:
            os.write(self._write, way)
            return
        if not self._leaving.acquire(blocking=False):  # it came the other way just now
            return
        with contextlib.suppress(Exception):
            os.write(2, f"magik_sa: {who} before the worker was ready: nothing to finish.\n".encode())
            sys.stdout.flush()
        os._exit(0)


def _open_closed_streams() -> None:
    """A stream that the process was started without leads nowhere. Else a pipe of ours, or a connection, would be in
    its place, and a library that writes to stdout would write into that.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)
