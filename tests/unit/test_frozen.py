"""A machine that stood still while a worker ended: the time is up, and what has ended in time did so all the same."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from magik_sa.settings import read
from magik_sa.worker import child, process, supervisor
from magik_sa.worker.ending import DEADLINE, DRAINED
from magik_sa.worker.process import drain
from magik_sa.worker.seat import Seat
from magik_sa.worker.signals import Signals
from magik_sa.worker.supervisor import Supervisor
from tests.tools import clock
from tests.tools.waiting import until

HOUR = 3_600.0


class Draining:
    """As much of a worker as is used there; it is frozen for an hour after the first look at its threads."""

    failure = None
    book = (1,)

    def __init__(self, now: clock.Clock, ends: bool) -> None:
        self.now, self.ends, self.looks, self.abandoned = now, ends, 0, False
        self.settings, self.locker = read({"database_url": "postgresql://x/x"}), self

    def ready(self, seconds: float) -> bool:
        return True

    def stop(self) -> None: ...

    def wait(self, seconds: float) -> bool:
        self.looks += 1
        if self.looks == 1:
            self.now.now += HOUR
            return False
        return self.ends

    def abandon(self) -> None:
        self.abandoned = True


@pytest.mark.parametrize(("ends", "code"), [(True, DRAINED), (False, DEADLINE)])
def test_a_worker_that_was_frozen_while_its_last_job_ended_has_drained(
    monkeypatch: pytest.MonkeyPatch, ends: bool, code: int
) -> None:
    worker: Any = Draining(clock.set_in(monkeypatch, process), ends)
    signals: Any = SimpleNamespace(wait=lambda _: False)
    assert drain(worker, signals) == code
    assert (worker.looks, worker.abandoned) == (2, not ends)


@pytest.mark.parametrize(("ends", "code"), [(True, DRAINED), (False, DEADLINE)])
def test_a_supervisor_that_was_frozen_kills_none_that_have_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, ends: bool, code: int
) -> None:
    """For an hour after its first look at all of them."""
    gate, leave, looks = tmp_path / "gate", Seat.leave, count(1)
    waits = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    monkeypatch.setattr(child, "program", lambda: [sys.executable, "-c", waits])
    looking = Supervisor(read({"database_url": "postgresql://x/x", "processes": "2"}), [], Signals())
    for seat in looking._seats:
        seat.tend()
    children = looking._children()
    now = clock.set_in(monkeypatch, supervisor)

    def look(seat: Seat) -> int | None:
        found = leave(seat)
        if next(looks) == len(children):
            now.now += HOUR
            gate.touch() if ends else None
            until(lambda: not ends or all(each._process.poll() == 0 for each in children), what="they have ended")
        return found

    monkeypatch.setattr(looking, "_stop", lambda: None)
    monkeypatch.setattr(Seat, "leave", look)
    assert looking._drain() == code
    assert caplog.text.count("process_killed") == (0 if ends else len(children))
    for each in children:
        each.ended()
