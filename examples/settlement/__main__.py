"""``python -m examples.settlement``: orders, jobs, a worker that is killed, and a balance. Exit code 1 if it is off."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NoReturn

import click
from rich.console import Console

from . import balance, database, sabotage, workers
from .application import plan
from .run import Run

MOST_COMPLAINTS = 20


SEEN: Final = (
    "What you have seen: each order that committed was settled once, of those that rolled back nothing is left, and the"
    " jobs of a worker that was killed in the middle of its work were done by the other."
)


@click.command()
@click.option("--orders", default=600, show_default=True, type=click.IntRange(12), help="orders to place")
@click.option("--seed", default=1, show_default=True, help="the same seed, the same purchases")
@click.option("--concurrency", default=16, show_default=True, type=click.IntRange(1, 30), help="threads of a worker")
@click.option("--database-url", help="a server to use, as a role that may create databases [an embedded PostgreSQL]")
@click.option("--sabotage", "spoil", type=click.Choice(sabotage.KINDS), help="spoil the run, to see the balance notice")
def main(orders: int, seed: int, concurrency: int, database_url: str | None, spoil: str | None) -> None:
    """Settle orders with jobs while a worker is killed, and see whether the books balance."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    console = Console()
    console.print("Starting a database, and migrating it.")
    with TemporaryDirectory(prefix="settlement-logs-") as folder:
        logs = Path(folder)
        try:
            with database.server(database_url) as server, database.fresh(server) as url:
                database.migrate(url)
                lines = Run(console, url, plan(orders, seed), concurrency, logs, spoil).play()
        except (workers.WorkerEnded, workers.NothingToKill) as error:
            raise click.ClickException("\n".join([str(error), *workers.complaints(logs)])) from error
        console.print(balance.table(lines))
        sys.exit(tell(console, lines, workers.complaints(logs)))


def tell(console: Console, lines: list[balance.Line], complaints: list[str]) -> int:
    """Print what was seen, or what does not balance and what the workers complained of; the exit code."""
    wrong = [line for line in lines if not line.balanced]
    if not wrong:
        console.print(f"{SEEN} All {len(lines)} lines are as they must be.", highlight=False)
    for line in wrong:
        console.print(f"Does not balance: {line.what}: {line.found}, must be {line.must_be}.", highlight=False)
    for complaint in complaints[:MOST_COMPLAINTS] if wrong else []:
        console.print(complaint, markup=False, highlight=False, soft_wrap=True)
    return 1 if wrong else 0


def interrupt(*_: object) -> NoReturn:
    """Out through every `finally`; a second Ctrl-C must not stop the clearing up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    main(prog_name="python -m examples.settlement")
