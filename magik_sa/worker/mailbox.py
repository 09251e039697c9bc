"""Messages to the locker, which sleeps on a socket: a queue with a descriptor that can be waited on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Many threads put, one takes. Nothing is lost, and one who waits is woken by any number of messages."""

    def __init__(self) -> None:
        self._letters: SimpleQueue[T] = SimpleQueue()
        self._bell, self._ring = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._ring, False)
        self._rings = False

    def fileno(self) -> int:
        return self._bell

    def put(self, letter: T) -> None:
        self._letters.put(letter)
        if not self._rings:
            self._rings = True
            with contextlib.suppress(BlockingIOError):  # a full pipe rings already
                os.write(self._ring, b"\0")

    def take(self) -> Iterator[T]:
        """All that is there now. The bell is silenced first, so what comes during the taking rings again."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._bell, 4096):
                pass
        self._rings = False
        with contextlib.suppress(Empty):
            while True:
                yield self._letters.get_nowait()
