"""Time limits: a job that lasts too long is interrupted in its own thread, and so is the statement it waits for.

Who is over its limit is decided by the clock alone, read once when the work has returned: a job that ended in time is
never told otherwise, and one that swallowed its interrupts is over its limit all the same.

An interrupt can arrive between any two instructions, also in the few that take the limit off. So that none outlives its
job, the thread that is limited takes no lock (it could lose one, taken, to the interrupt): it closes the limit, waits
while the watchdog is just interrupting, and drops what was not delivered. Closed twice is closed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from sqlalchemy import Connection

from . import commits, statement
from .duration import text
from .errors import JobTimeout
from .failure import headline
from .interrupts import Interrupt, firing, raise_in, wait_for_fire
from .logs import say

AGAIN_AFTER: Final = 1.0  # seconds between two interrupts of the same work
HANG_UP_AFTER: Final = 3.0  # seconds over the limit until a statement's socket is shut, if cancelling did not end it
STUBBORN_AFTER: Final = 10.0  # seconds over the limit until the log tells of work that takes no notice

T = TypeVar("T")


class Limit:
    """One piece of work in one thread, and when its time is up. Times are those of `time.monotonic`."""

    def __init__(self, span: timedelta, connection: Connection | None) -> None:
        self.span, self.connection = span, connection
        self.thread, self.ident = threading.current_thread().name, threading.get_ident()
        self.deadline = self.next = time.monotonic() + span.total_seconds()  # next: of the next interrupt
        self.fired = self.closed = self.told = False
        self.ended: float | None = None
        self.result: Any = None
        self.error: BaseException | None = None


class Limits:
    """The limits in force in one worker. The watchdog sleeps in `sleep` and then calls `enforce`, nobody else."""

    def __init__(self) -> None:
        self._armed: dict[int, Limit] = {}
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._wakes_at = float("inf")

    def within(self, span: timedelta | None, work: Callable[[], T], connection: Connection | None = None) -> T:
        """``work()`` in this thread; what it returns or raises, unless it lasted longer than `span`.

        Raises `JobTimeout` then, whatever the work made of its `Interrupt`. A statement that it waits for on
        `connection` is cancelled; and that Connection is given up, to connect anew when it is next used: a cancel may
        still be under way, and nobody knows where the interrupt left the driver.

        A function and no context manager, whose own `__exit__` an interrupt could prevent.
        """
        if span is None:
            return work()
        limit = Limit(span, connection)
        try:
            try:
                self._do(limit, work)
                self._close(limit)
            except Interrupt:  # between two instructions of ours
                self._close(limit)
        except Interrupt:  # and the next, a second later; no third can come, since the limit is closed
            self._close(limit)
        return _verdict(limit)  # type: ignore[no-any-return]

    def sleep(self, longest: float) -> None:
        """Until a limit may be over, `wake` is called, or so many seconds have passed."""
        self._wakes_at = float("inf")  # who arms from here on rings
        first = min([limit.next for limit in list(self._armed.values())], default=float("inf"))
        seconds = max(0.0, min(longest, first - time.monotonic()))
        self._wakes_at = time.monotonic() + seconds
        with contextlib.suppress(Empty):
            self._bell.get(timeout=seconds)

    def wake(self) -> None:
        """End the watchdog's sleep."""
        self._bell.put(None)

    def enforce(self) -> None:
        """Interrupt whatever is over its limit now."""
        for limit in list(self._armed.values()):
            if time.monotonic() >= limit.next:
                self._fire(limit)

    # ---- in the thread that is limited

    def _do(self, limit: Limit, work: Callable[[], Any]) -> None:
        try:
            self._armed[id(limit)] = limit
            if limit.next < self._wakes_at:
                self.wake()
            limit.result = work()
            limit.ended = time.monotonic()
        except BaseException as error:
            if limit.ended is None:
                limit.error, limit.ended = error, time.monotonic()

    def _close(self, limit: Limit) -> None:
        limit.closed = True
        wait_for_fire()
        if limit.fired:
            raise_in(limit.ident, None)
        commits.forget(limit.ident)
        self._armed.pop(id(limit), None)

    # ---- in the watchdog

    def _fire(self, limit: Limit) -> None:
        now = time.monotonic()
        limit.next = now + AGAIN_AFTER
        with firing(limit.ident):
            if not limit.closed:
                _end_statement(limit, now)
                self._interrupt(limit, now)
        if now - limit.deadline >= STUBBORN_AFTER and not (limit.told or limit.closed):
            limit.told = True
            say(logging.WARNING, "limit_ignored", thread=limit.thread, limit=text(limit.span))

    def _interrupt(self, limit: Limit, now: float) -> None:
        if commits.under_way(limit.ident) and now - limit.deadline < HANG_UP_AFTER:
            commits.put_off(limit.ident)
        else:
            limit.fired = True
            raise_in(limit.ident, Interrupt)


def _end_statement(limit: Limit, now: float) -> None:
    """Before the interrupt, which may make the thread close its connection. Work that waits here is over its limit."""
    driver = None if limit.connection is None else statement.running(limit.connection)
    late = now - limit.deadline >= HANG_UP_AFTER
    try:
        if driver is not None and not late and statement.can_be_cancelled(driver):
            statement.cancel(driver)
        elif driver is not None and (late or not commits.under_way(limit.ident)):
            statement.hang_up(driver)
            say(logging.WARNING, "statement_hung_up", thread=limit.thread, limit=text(limit.span))
    except Exception as error:
        say(logging.WARNING, "statement_not_ended", thread=limit.thread, error=headline(error))


def _verdict(limit: Limit) -> Any:
    error, limit.error = limit.error, None
    try:
        if limit.ended is None or limit.ended >= limit.deadline:
            _give_up(limit.connection)
            raise JobTimeout("MAGIK_JOB_TIMEOUT", f"It lasted longer than {text(limit.span)}.") from error
        if error is not None:
            raise error
        return limit.result
    finally:
        del error  # whose traceback leads here


def _give_up(connection: Connection | None) -> None:
    try:
        if connection is not None and not connection.closed:
            connection.invalidate()
    except Exception as error:
        say(logging.WARNING, "connection_not_closed", error=headline(error))
