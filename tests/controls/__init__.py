"""Workers that lack one mechanism each: what a guarantee is worth shows where it is missing.

Each module is a program, started by ``WorkerProcess(…, program=control("without_the_fence"))``: it takes the
mechanism away and then is ``python -m magik_sa.worker``.
"""

from __future__ import annotations

import runpy


def control(name: str) -> tuple[str, ...]:
    """The program of that name, for `WorkerProcess`."""
    return "-m", f"tests.controls.{name}"


def work() -> None:
    """Be the worker's program."""
    runpy.run_module("magik_sa.worker", run_name="__main__", alter_sys=True)


def without(text: str, part: str) -> str:
    """`text` without `part`, which has to be there: a control that takes nothing away proves nothing."""
    assert part in text, f"nothing to take away: {part!r}"
    return text.replace(part, "")
