"""Whether all threads are let at what waits, or one alone.

The interpreter runs one thread at a time, and handing it from one to another costs as much as a short job: threads that
all want it are woken on other cores, one after the other, and nobody computes until they run. Of jobs that are short
and compute, one thread does more than ten do. Those that wait for something are for all threads.

Which of the two they are shows only while one thread is at work, by the processor time that its jobs use beside the
time that they last. So once jobs have become short the gate is shut on trial. It is opened as soon as they turn out to
wait, or as one of them lasts; each such trial puts the next one off for twice as long. Code that computes beside the
interpreter (hashing, numpy) looks as if it needed one thread only. It shows while all threads are at work: the process
then uses more than one core.
"""

from __future__ import annotations

import time
from typing import Final

SHORT: Final = 0.001  # seconds that jobs last, in the mean, when one thread is tried
STALLED: Final = 0.01  # seconds without another job begun, after which all are let in
ENOUGH: Final = 0.02  # seconds of jobs by which they are judged
FEWEST: Final = 20  # of them
AGAIN: Final = 0.2  # seconds until they are judged anew
COMPUTES: Final = 0.4  # of the time that jobs last, when one thread is enough: much of the rest is the locker's
BESIDE: Final = 1.35  # cores, from which on something computes beside the interpreter
LONGEST_LOOK: Final = 0.1  # seconds in which that is measured
PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds until the next trial, after the first that failed and at last
ANEW: Final = 5.0  # seconds after which all are let in for a look at the cores that are used


class Gate:
    """Looked at and changed under the tray's lock; `note` is told of each job that has ended."""

    def __init__(self) -> None:
        self.is_open = True
        self._pause, self._try_at, self._shut_at, self._judge_at = PAUSE, 0.0, 0.0, 0.0
        self._jobs, self._lasted, self._cpu = 0, 0.0, 0.0
        self._since = self._process = 0.0

    def began(self, now: float) -> float | None:
        """What `note` wants to know of the beginning of a job, in its thread."""
        return None if self.is_open or now < self._judge_at else time.thread_time()

    def note(self, lasted: float, began: float | None, mean: float, now: float) -> bool:
        """A job of this thread has lasted so long, and jobs last for `mean`; whether all have just been let in."""
        if self.is_open:
            if mean < SHORT and now >= self._try_at:
                self._count(lasted, 0.0)
                self._look(now)
            return False
        if began is not None:
            self._count(lasted, time.thread_time() - began)
            self._judge(now)
        return self.is_open

    def open(self, now: float) -> None:
        """They wait: let all in, for a while that is longer each time."""
        self.is_open = True
        self._try_at = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._restart(now)

    def _look(self, now: float) -> None:
        """How many cores they take together; one thread is tried where it is no more than one."""
        took = now - self._since
        if took > LONGEST_LOOK:  # there was nothing to do for a while
            self._restart(now)
        elif self._is_enough():
            self.is_open = time.process_time() - self._process > BESIDE * took
            self._shut_at = now
            self._restart(now)

    def _judge(self, now: float) -> None:
        if not self._is_enough():
            return
        if self._cpu < COMPUTES * self._lasted:
            self.open(now)
            return
        self._pause, self._judge_at = PAUSE, now + AGAIN
        self.is_open = now - self._shut_at >= ANEW
        self._restart(now)

    def _count(self, lasted: float, cpu: float) -> None:
        self._jobs, self._lasted, self._cpu = self._jobs + 1, self._lasted + lasted, self._cpu + cpu

    def _is_enough(self) -> bool:
        return self._lasted >= ENOUGH and self._jobs >= FEWEST

    def _restart(self, now: float) -> None:
        self._jobs, self._lasted, self._cpu = 0, 0.0, 0.0
        self._since, self._process = now, time.process_time()
