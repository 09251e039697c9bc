"""What a guarantee is worth shows where its mechanism is missing: each module takes one away.

A module has `take_out`, which replaces one function or one constant of the package in the process that calls it, or
`SQL`, which takes something away from the database that the tests' own are cloned from, or both. It is called

* in one worker of a test that is a control: ``WorkerProcess(…, program=control("without_the_fence"))``;
* in a whole run of pytest, and in every worker that it starts, by ``MAGIK_TEST_WITHOUT=without_the_fence``.

The package knows of none of this: the variable is read by the tests' own tools.
"""

from __future__ import annotations

import importlib
import os
import runpy
from typing import Any, Final

VARIABLE: Final = "MAGIK_TEST_WITHOUT"


def control(name: str) -> tuple[str, ...]:
    """The program of that name, for `WorkerProcess`."""
    return "-m", f"tests.controls.{name}"


def missing() -> str | None:
    """What this run of the tests does without."""
    return os.environ.get(VARIABLE)


def take_out(name: str) -> str:
    """Take it away from this process; what has to be done to the database besides, as SQL."""
    module = importlib.import_module(f"{__name__}.{name}")
    assert hasattr(module, "take_out") or hasattr(module, "SQL"), f"nothing to take away: {name}"
    if hasattr(module, "take_out"):
        module.take_out()
    sql: str = getattr(module, "SQL", "")
    return sql


def work() -> None:
    """Be the worker's program, without what this run of the tests does without."""
    if name := missing():
        take_out(name)
    runpy.run_module("magik_sa.worker", run_name="__main__", alter_sys=True)


def without(text: str, part: str, instead: str = "") -> str:
    """`text` without `part`, which has to be there: a control that takes nothing away proves nothing."""
    assert part in text, f"nothing to take away: {part!r}"
    return text.replace(part, instead)


def replace(owner: Any, name: str, instead: object) -> None:
    """Have `instead` in the place of what has this name there, and which has to be there."""
    assert hasattr(owner, name), f"nothing to take away: {name}"
    setattr(owner, name, instead)
