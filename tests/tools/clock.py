"""The clock of the modules that ask `time.monotonic`, where a test has to say what time it is."""

from __future__ import annotations

from types import ModuleType

import pytest


class Clock:
    """Stands in for their `time`: it stands still unless the test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now


def set_in(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> Clock:
    """One that these modules go by until the end of the test."""
    clock = Clock()
    for module in modules:
        monkeypatch.setattr(module, "time", clock)
    return clock
