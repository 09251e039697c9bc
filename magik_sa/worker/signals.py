"""SIGTERM and SIGINT from the first instruction of the process to the last.

Until the worker works there is nothing to finish: the process ends at once, with code 0, whatever it is importing.
From then on a signal is a byte in a pipe that the main thread reads. (Not an Event: setting one inside a handler
can deadlock with the wait that it interrupted.)
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from ..readable import readable


class Signals:
    """Stop signals: `install` as early as can be, `arm` when there is something to drain."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.armed = False
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
        """Wait up to `seconds` for one more signal; whether it came."""
        return bool(readable([self._read], seconds) and os.read(self._read, 1))

    def _let_go(self) -> None:
        """What a job forks is no worker: a signal ends it, and is not told to the parent through the pipe."""
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.armed:
            os.write(self._write, b"\0")
            return
        os.write(
            2, f"magik_sa: {signal.Signals(number).name} before the worker was ready: nothing to finish.\n".encode()
        )
        sys.stdout.flush()
        os._exit(0)
