"""Whether all threads are let at what waits, or one alone.

The interpreter runs one thread at a time, and handing it from one to another costs as much as a short job: threads that
all want it are woken on other cores, one after the other, and nobody computes until they run. Of jobs that are short
and compute, one thread does more than ten do. Those that wait for something are for all threads.

Which of the two they are shows only while one thread is at work, by the processor time that it uses beside the time
that its jobs last. So once jobs have become short the gate is shut on trial. It is opened as soon as they turn out to
wait, or as one of them lasts.
"""

from __future__ import annotations

import threading
import time
from typing import Final

SHORT: Final = 0.001  # seconds that jobs last, in the mean, when one thread is tried
STALLED: Final = 0.01  # seconds without another job begun, after which all are let in
TRIAL: Final = 250  # jobs until it is judged, again and again
COMPUTES: Final = 0.3  # of the time that jobs last, when one thread is enough: some of the rest is the locker's
PAUSE: Final = 0.5  # seconds until the next trial


class Gate:
    """Looked at and changed under the tray's lock."""

    def __init__(self) -> None:
        self.is_open = True
        self._try_at = 0.0
        self._count, self._lasted, self._thread, self._began = 0, 0.0, 0, 0.0

    def note(self, lasted: float, mean: float) -> None:
        """A job of this thread has lasted so many seconds, and jobs last for `mean`."""
        if self.is_open:
            if mean < SHORT and time.monotonic() >= self._try_at:
                self.is_open = False
                self._restart()
        elif self._thread != threading.get_ident():
            self._restart()
        else:
            self._count, self._lasted = self._count + 1, self._lasted + lasted
            if self._count == TRIAL:
                self._judge()

    def open(self) -> None:
        """Let all in, and for a while."""
        self.is_open = True
        self._try_at = time.monotonic() + PAUSE

    def _judge(self) -> None:
        if time.thread_time() - self._began < COMPUTES * self._lasted:
            self.open()
        self._restart()

    def _restart(self) -> None:
        self._count, self._lasted = 0, 0.0
        self._thread, self._began = threading.get_ident(), time.thread_time()
