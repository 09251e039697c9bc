"""What a run can come to, and what a job can ask for by raising it."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum

from .duration import duration


class Outcome(Enum):
    """How a run ended."""

    __hash__ = object.__hash__  # Enum's own, in Python, is asked some ten times a job

    FINISHED = "finished"
    PERFORMED = "performed"  # and wrote nothing: its row is still to go, with those of others
    SNOOZED = "snoozed"
    RETRY = "retry"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    UNRECORDED = "unrecorded"  # the database was out of reach: the row is as it was, and runs again


class Snooze(Exception):
    """``raise Snooze("5m")`` in perform: commit what was written so far, and run again in five minutes.

    No failure: it uses up no try. Raises `DeclarationError` ``MAGIK_DURATION_INVALID`` for anything but a duration.
    """

    def __init__(self, delay: str | timedelta) -> None:
        self.delay = duration(delay, field="Snooze", zero=True)
        super().__init__(delay)


class Discard(Exception):
    """``raise Discard("the account is closed")`` in perform: commit what was written so far, and never run again.

    The row stays as a dead letter with the reason; `on_failure` is called as at any other end without success.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)


class Superseded(Exception):
    """The row is no longer the one this run was given: another worker has it, or it was moved or cancelled."""
