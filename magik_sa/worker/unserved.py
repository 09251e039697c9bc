"""Due jobs of classes that nobody declared here: the log tells of them now and then."""

from __future__ import annotations

import logging
import time
from typing import Final

from ..claim.unserved import unserved
from ..logs import say
from .line import Line

EVERY: Final = 60.0  # seconds between two looks
MOST: Final = 20  # classes that one line of the log names


class Unserved:
    """When it was last looked for them."""

    def __init__(self) -> None:
        self._next = 0.0

    def tell(self, line: Line) -> None:
        """Look for them, if it is time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY
        told = line.assignment
        if classes := unserved(line.connection, line.names, told.queues, told.known):
            say(logging.WARNING, "jobs_of_unknown_classes", classes=_some(classes))


def _some(classes: list[str]) -> str:
    more = len(classes) - MOST
    return ", ".join([*classes[:MOST], *([f"and {more} more"] if more > 0 else [])])
