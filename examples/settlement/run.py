"""One run, from the first order to the balance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from . import balance, sabotage, workers
from .application import Ending, Produced, Purchase, open_shops, producing
from .balance import Line
from .progress import Display
from .workers import NothingToKill, WorkerProcess

T = TypeVar("T")

PATIENCE = 60.0  # seconds that any one thing may take; the balance then tells what is missing


class Run:
    """Producers, two workers and their end, on one migrated database."""

    def __init__(
        self, console: Console, url: str, purchases: list[Purchase], concurrency: int, logs: Path, spoil: str | None
    ) -> None:
        self.url, self.concurrency, self.logs, self.spoil = url, concurrency, logs, spoil
        self.engine = create_engine(url)
        self.sessions = sessionmaker(self.engine)
        self.produced = Produced(purchases)
        self.display = Display(console, totals(purchases), self.counts)

    def play(self) -> list[Line]:
        """The run; returns its balance."""
        open_shops(self.sessions)
        try:
            with workers.started(self.url, self.concurrency, self.logs) as both, self.display:
                return self.work(both)
        finally:
            self.engine.dispose()

    def work(self, both: list[WorkerProcess]) -> list[Line]:
        """Two workers while orders come in, then one, then none."""
        self.display.until(lambda: all(worker.ready for worker in both), PATIENCE)
        self.display.say(f"Two workers are ready, {self.concurrency} threads each. The shops open.")
        with producing(self.sessions, self.produced):
            survivor = self.kill_one(both)
            self.display.until(lambda: self.produced.finished, PATIENCE)
        self.display.until(lambda: self.ask(balance.quiet), PATIENCE)
        self.sabotage(sabotage.AFTER_THE_WORK)
        lines = self.ask(lambda session: balance.read(session, self.produced))
        self.display.say(f"SIGTERM to {survivor.name}.")
        return [*lines, balance.equal("exit code of the other worker after SIGTERM", survivor.terminate(), 0)]

    def kill_one(self, both: list[WorkerProcess]) -> WorkerProcess:
        """Kill a worker in the middle of its work; returns the other."""
        self.sabotage(sabotage.BEFORE_THE_KILL)
        killed = self.display.until(lambda: self.ask(lambda session: self.kill_busiest(both, session)), PATIENCE)
        if killed is None:
            raise NothingToKill(f"No worker was seen at work in {PATIENCE:g} s.")
        victim, running = killed
        self.display.say(f"SIGKILL to {victim.name} in the middle of its work; jobs certainly running: {running}.")
        return next(worker for worker in both if worker is not victim)

    def kill_busiest(self, both: list[WorkerProcess], session: Session) -> tuple[WorkerProcess, int] | None:
        """Kill a worker that has just begun many jobs; after half of the purchases any will do."""
        early = len(self.produced.ended) < len(self.produced.purchases) / 2
        victim = workers.busiest(both, session, at_least=max(1, self.concurrency // 2) if early else 1)
        running = workers.kill(victim, session) if victim else 0
        return (victim, running) if victim and running else None

    def sabotage(self, kinds: sabotage.Kinds) -> None:
        """Spoil the run now, if that was asked for, as soon as there is something to spoil."""
        if self.spoil is not None and self.spoil in kinds:
            self.display.until(lambda: self.ask(kinds[self.spoil or ""]), PATIENCE)

    def ask(self, question: Callable[[Session], T]) -> T:
        """Ask the database in a short Session of its own."""
        with self.sessions() as session:
            return question(session)

    def counts(self) -> dict[str, int]:
        """How far things are, for the display."""
        return {
            "committed": self.produced.committed,
            "settled": self.ask(balance.settled),
            "repeats": self.produced.repeats,
            "rolled back on purpose": len(self.produced.rolled_back),
        }


def totals(purchases: list[Purchase]) -> dict[str, int]:
    """What there will be at the end; of the repeats as many at most."""
    endings = [purchase.ending for purchase in purchases]
    committed = sum(ending.commits for ending in endings)
    repeats = endings.count(Ending.DOUBLED) + endings.count(Ending.RESUBMITTED)
    return {
        "committed": committed,
        "settled": committed,
        "repeats": repeats,
        "rolled back on purpose": len(purchases) - committed,
    }
