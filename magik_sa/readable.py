"""Which of some sockets and pipes have something to read. By poll(): select() knows no more than 1,024."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Protocol

LONGEST = 86_400.0  # seconds; poll() takes no more than 24 days


class Readable(Protocol):
    """What has a descriptor: a socket, a connection."""

    def fileno(self) -> int: ...


def readable(things: Sequence[int | Readable], seconds: float) -> list[int | Readable]:
    """Those with something to read, or at their end, as soon as there is one; none after so many seconds, or a day."""
    look = select.poll()
    descriptors = [thing if isinstance(thing, int) else thing.fileno() for thing in things]
    for descriptor in descriptors:
        look.register(descriptor, select.POLLIN)
    ready = {descriptor for descriptor, _ in look.poll(min(max(seconds, 0.0), LONGEST) * 1000)}
    return [thing for thing, descriptor in zip(things, descriptors, strict=True) if descriptor in ready]
