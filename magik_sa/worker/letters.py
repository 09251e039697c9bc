"""What the locker is told: its assignment before it starts, and letters while it works."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

from ..claim import Claimed
from ..outcome import Outcome
from .mailbox import Mailbox


@dataclass(slots=True)
class Ended:
    """A performer's word that a run is over and committed: its note and its locks can go.

    One that is merely performed is to be committed by who reads this. `took`: milliseconds.
    """

    job: Claimed
    outcome: Outcome
    took: float = 0.0


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

    conninfo: str = field(repr=False)
    schema: str | None
    app_name: str
    worker: str
    queues: tuple[str, ...]
    known: Collection[str]
    concurrency: int
    poll_interval: float
    database_timeout: float
    threads: int | None = None  # that need a connection of the pool each
    pool: int | None = None  # how many it gives; None: without a limit
