"""``python -m tests.chaos --seconds 60 --seed 1``: exit 0 when it balances, 1 when it does not."""

from __future__ import annotations

import argparse
import sys

from tests.controls import control

from .report import printed
from .run import run
from .stage import PROGRAM


def main() -> None:
    """Read the options, run, print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults strike")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same plan of faults")
    parser.add_argument("--control", help="a module of tests/controls that the workers are")
    parser.add_argument("--keep", help="a file to copy the record to")
    told = parser.parse_args()
    outcome = run(told.seconds, told.seed, control(told.control) if told.control else PROGRAM, told.keep)
    print(printed(outcome))
    sys.exit(1 if outcome.imbalance else 0)


if __name__ == "__main__":
    main()
