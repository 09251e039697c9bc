"""``python -m tests.promises [N …] [--short]``: exit 0 when each line is green with its mechanism and red without."""

from __future__ import annotations

import argparse
import importlib
import sys

from tests.controls import __name__ as controls
from tests.tools.cluster import Cluster

from .run import Verdict, verdicts
from .table import LINES, Line


def main() -> None:
    """Read the options, run, print a line of the table as soon as it is known."""
    parser = argparse.ArgumentParser(prog="python -m tests.promises", description=__doc__)
    parser.add_argument("promises", nargs="*", help="numbers of docs/guarantees.md; all of them if none is given")
    parser.add_argument("--short", action="store_true", help="only those that the suite runs")
    parser.add_argument("--at-once", type=int, default=2, help="how many tests run at once without their mechanism [2]")
    told = parser.parse_args()
    wrong = 0
    print("| promise | mechanism | how it is taken out | with it | without it |\n|---|---|---|---|---|", flush=True)
    with Cluster() as cluster:
        for verdict in verdicts(chosen(told.promises, short=told.short), cluster.url(), told.at_once):
            print(row(verdict), flush=True)
            wrong += not verdict.right
    sys.exit(1 if wrong else 0)


def chosen(promises: list[str], *, short: bool) -> list[Line]:
    """The lines of these promises; of all if none is named."""
    numbers = {line.promise.partition(",")[0] for line in LINES}
    if unknown := set(promises) - numbers:
        sys.exit(f"no such promise: {', '.join(sorted(unknown))}")
    mine = [line for line in LINES if not promises or line.promise.partition(",")[0] in promises]
    return [line for line in mine if line.short or not short]


def row(verdict: Verdict) -> str:
    """One line of the table."""
    line = verdict.line
    how = (importlib.import_module(f"{controls}.{line.without}").__doc__ or "").splitlines()[0]
    cells = (line.promise, line.mechanism, how, verdict.with_it, verdict.without_it)
    return f"| {' | '.join(cell.replace('|', '¦').replace(chr(10), ' ') for cell in cells)} |"


if __name__ == "__main__":
    main()
