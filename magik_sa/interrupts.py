"""An exception that one thread has raised in the middle of another's work, and how the other knows of it in time."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_firing: set[int] = set()  # threads that a watchdog is just interrupting


class Interrupt(BaseException):
    """Raised in the middle of work whose time is up. No Exception, so that ``except Exception`` lets it pass."""


@contextmanager
def firing(thread: int) -> Iterator[None]:
    """In the watchdog: meanwhile that thread waits, if it asks."""
    _firing.add(thread)
    try:
        yield
    finally:
        _firing.discard(thread)


def wait_for_fire() -> None:
    """Whoever has just said what may be done with its thread waits for the watchdog, which may not have heard."""
    while threading.get_ident() in _firing:
        time.sleep(0.0001)


_set_async_exc = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


def raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Have `kind` raised in that thread, at its next instruction of Python; None takes back what was not raised yet."""
    _set_async_exc(thread, ctypes.py_object() if kind is None else kind)
