"""``python -m tests.resources --jobs 20000 --notes 200000``: a table of what a worker holds after each of three rounds.

A round is so many notifications, then so many jobs, of which every tenth fails once. Exits with 1 where the third round
left more than the second.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from tests.tools.cluster import Cluster
from tests.tools.schema import migrate
from tests.tools.workers import WorkerProcess

from .house import GROWTH, MODULES, Held, House

HEAD = ["after", "memory MiB", "peak MiB", "threads", "descriptors", "connections", "locks", "notes"]
HEAD += ["notify s", "statements", "jobs s"]


@contextmanager
def house(concurrency: int) -> Iterator[House]:
    """One on a server of its own."""
    with Cluster() as cluster, tempfile.TemporaryDirectory() as folder:
        cluster.execute("CREATE ROLE worker LOGIN")
        cluster.execute("CREATE DATABASE resources OWNER worker")
        url = cluster.url("resources", "worker")
        migrate(url)
        env = {"BURST_FILE": str(Path(folder) / "runs")}
        with WorkerProcess(url, *MODULES, concurrency=concurrency, env=env) as worker:
            worker.wait_ready()
            with closing(House(url, cluster.dsn("resources"), worker)) as house:
                yield house


def row(name: str, held: Held, *more: object) -> list[object]:
    """One line of the table."""
    mib = [f"{kib / 1024:.1f}" for kib in (held.process.rss, held.process.peak)]
    return [name, *mib, *held.countable[:-1], *more]


def show(cells: Sequence[object]) -> None:
    """Print a line, as Markdown has tables."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def main() -> None:
    """Read the options, run, print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.resources", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000, help="in each round")
    parser.add_argument("--notes", type=int, default=200_000, help="notifications in each round")
    parser.add_argument("--concurrency", type=int, default=8)
    told = parser.parse_args()
    found: list[Held] = []
    show(HEAD)
    show(["---"] * len(HEAD))
    with house(told.concurrency) as at:
        at.work(told.concurrency * 20)
        show(row("the start", at.rest(), "", "", ""))
        for number in range(1, 4):
            seconds, asked = at.flood(told.notes)
            worked = at.work(told.jobs)
            found.append(at.rest())
            show(row(f"round {number}", found[-1], f"{seconds:.1f}", asked, f"{worked:.0f}"))
    grown = found[2].process.rss - found[1].process.rss
    same = found[2].countable == found[1].countable
    print(f"from the second round to the third: {grown:+,} KiB, all else {'the same' if same else 'NOT the same'}")
    sys.exit(0 if same and grown < GROWTH else 1)


if __name__ == "__main__":
    main()
