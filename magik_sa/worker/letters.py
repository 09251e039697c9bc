"""What the locker is told: its assignment before it starts, and letters while it works."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

from ..claim import Claimed
from ..outcome import Outcome
from .mailbox import Mailbox


@dataclass(frozen=True)
class Ended:
    """A performer's word that a run is over and committed: its note and its locks can go."""

    job: Claimed
    outcome: Outcome


@dataclass(frozen=True)
class Stop:
    """Claim nothing more, give back what was not begun, end when the last run has ended."""


@dataclass(frozen=True)
class Abandon:
    """The deadline has passed: clear the notes of what still runs, because a deploy is not a failure."""

    done: threading.Event


Mail = Mailbox[Ended | Stop | Abandon]


@dataclass(frozen=True)
class Assignment:
    """What a locker needs to know, settled at boot. Times in seconds."""

    conninfo: str
    schema: str | None
    app_name: str
    worker: str
    queues: tuple[str, ...]
    known: Collection[str]
    concurrency: int
    poll_interval: float
    database_timeout: float
