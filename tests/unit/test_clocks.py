"""The database's clock is the only one that tells what is due: the scheduler never reads this machine's."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "magik_sa"
CLOCKS = {"now", "utcnow", "today", "time", "time_ns", "localtime", "gmtime"}


def read(source: str) -> set[str]:
    """The calls in a module that read the machine's clock. `time.monotonic` counts seconds, and knows no date."""
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return {ast.unparse(func) for func in calls if isinstance(func, ast.Attribute) and func.attr in CLOCKS}


@pytest.mark.parametrize("module", ["timetable", "ticks", "recurring", "worker/scheduler", "worker/rest"])
def test_the_scheduler_reads_no_clock_of_the_machine(module: str) -> None:
    assert read((PACKAGE / f"{module}.py").read_text()) == set()


def test_a_clock_would_be_found() -> None:
    assert read("datetime.now(UTC); time.time(); time.monotonic(); date.today()") == {
        "datetime.now",
        "time.time",
        "date.today",
    }
