"""Waiting for an event instead of sleeping through a guess."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LONGEST = 0.05  # seconds between two looks

PATIENCE = "MAGIK_TEST_PATIENCE"


def patience(timeout: float) -> float:
    """`timeout`, or less where MAGIK_TEST_PATIENCE says so: a run that is to fail need not wait for long."""
    return min(timeout, float(os.environ.get(PATIENCE, timeout)))


class NotInTime(AssertionError):
    """What was waited for did not happen before the timeout."""


def until(predicate: Callable[[], T | None], timeout: float = 10.0, every: float = 0.01, what: str = "") -> T:
    """Call `predicate` until it returns something true, and return that; raise `NotInTime` at the timeout.

    The predicate is asked at least once, and once more when the time is up, so that a slow machine that slept
    through the deadline does not make a test fail whose condition holds. What has not come soon is asked for less
    often, up to every 0.05 s: the asking takes the machine from what is waited for.
    """
    timeout = patience(timeout)
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() >= deadline
        if found := predicate():
            return found
        if late:
            raise NotInTime(f"not within {timeout:g} s: {what or getattr(predicate, '__qualname__', predicate)}")
        waited = time.monotonic() - (deadline - timeout)
        time.sleep(max(every, min(LONGEST, waited / 20)))


def never(predicate: Callable[[], object], during: float, every: float = 0.01, what: str = "") -> None:
    """Hold for `during` seconds that `predicate` stays false: for "nothing happens" there is no event to await."""
    deadline = time.monotonic() + during
    while time.monotonic() < deadline:
        if found := predicate():
            raise AssertionError(f"happened: {what or getattr(predicate, '__qualname__', predicate)} ({found!r})")
        time.sleep(every)
