"""Rounds: in each all cases of a scenario are measured, in an order of its own, so that none is always the first."""

from __future__ import annotations

import fcntl
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .figures import Figures
from .results import Results
from .scenario import Case, Scenario, World


@contextmanager
def alone() -> Iterator[None]:
    """One benchmark at a time on this machine: another waits here."""
    with (Path(tempfile.gettempdir()) / "magik-benchmarks.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another benchmark runs; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(scenario: Scenario, world: World, results: Results, rounds: int, seed: int) -> None:
    """Measure `rounds` of them, and write each when it is done."""
    for number in range(rounds):
        cases = list(scenario.cases(world))
        random.Random(f"{seed} {number} {scenario.name}").shuffle(cases)
        say(f"{scenario.name}, round {number + 1} of {rounds}")
        found = {case.name: measured(case, scenario.shown) for case in cases}
        names = [case.name for case in scenario.cases(world)]
        results.add(scenario.name, {name: found[name] for name in names})


def measured(case: Case, shown: tuple[str, ...]) -> dict[str, Any]:
    """Its figures, or why there are none: whatever goes wrong with one leaves the others."""
    try:
        figures: Figures = case.measure()
    except Exception as error:
        say(f"  {case.name}: FAILED: {error}")
        return {"failed": f"{type(error).__name__}: {error}"[-1500:]}
    say(f"  {case.name}: " + ", ".join(f"{name} {figures[name]:,.4g}" for name in shown if name in figures))
    return dict(figures)


def say(line: str) -> None:
    """To the terminal, at once."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
