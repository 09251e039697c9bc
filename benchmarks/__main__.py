"""``python -m benchmarks [SCENARIO …]`` measures; ``python -m benchmarks report`` writes what was measured.

Exits with 1 where a case failed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import report, running
from .peers import ALL as PEERS
from .peers import OURS
from .results import FULL, QUICK, Results
from .scenario import World
from .scenarios import ALL
from .server import Servers


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="SCENARIO", help=f"report, or of: {', '.join(ALL)} (all)")
    parser.add_argument("--peers", default="best", help=f"all, none, or of: {', '.join(PEERS)} (the best of each)")
    parser.add_argument("--rounds", type=int, help="as many as the scenario says (1 if quick)")
    parser.add_argument(
        "--quick", action="store_true", help="fewer jobs, shorter: whether it works, and about how fast"
    )
    parser.add_argument("--add", action="store_true", help="keep the rounds that are there, and add to them")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the cases in a round")
    parser.add_argument("--results", type=Path, help=f"{FULL.name}, or {QUICK.name} if quick, beside the code")
    return parser


def measure(told: argparse.Namespace, results: Results) -> int:
    """Run what was asked for; how many cases failed."""
    names = told.words or [name for name, scenario in ALL.items() if not (told.quick and scenario.long)]
    with running.alone(), Servers() as servers:
        world = World(servers, told.quick, told.peers)
        for name in names:
            scenario = ALL[name]
            if not told.add:
                results.forget(name)
            running.run(scenario, world, results, told.rounds or (1 if told.quick else scenario.rounds), told.seed)
        introduce(world, results)
    running.say(report.goals(results, names))
    return sum("failed" in case for name in names for cases in results.rounds(name) for case in cases.values())


def introduce(world: World, results: Results) -> None:
    """Note versions and settings of those who may have been measured, and say who could not be."""
    for contender in [OURS, *world.rivals(*PEERS)]:
        results.introduce(contender.name, contender.call("info"))
    for absent in sorted(world.absent):
        running.say(f"not installed, left out: {absent}")


def write(results: Results) -> None:
    """The page and the picture, beside the results."""
    page, picture = results.file.with_suffix(".md"), results.file.with_suffix(".svg")
    page.write_text("\n".join(report.lines(results)) + "\n")
    running.say(f"wrote {page}")
    try:
        from . import plot

        plot.draw(results, picture)
        running.say(f"wrote {picture}")
    except ImportError:
        running.say("no picture: matplotlib is not installed")


def main() -> None:
    """Read the options and do it."""
    told = parser().parse_args()
    results = Results(told.results or (QUICK if told.quick else FULL))
    if told.words == ["report"]:
        write(results)
        return
    if unknown := [word for word in told.words if word not in ALL]:
        sys.exit(f"no such scenario: {', '.join(unknown)}; there are {', '.join(ALL)}")
    sys.exit(1 if measure(told, results) else 0)


if __name__ == "__main__":
    main()
