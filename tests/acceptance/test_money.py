"""Money: five workers, killed at random, the same transfers asked for again and again, and every cent in its place."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from decimal import Decimal

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session as OrmSession

from magik_sa import Job
from tests.jobs.money import ACCOUNTS, OPENING, AnyTransfer, CarelessTransfer, Transfer, balances, bookings, open_bank
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

LONG = os.environ.get("MAGIK_CHAOS") == "long"
TRANSFERS = 150  # so few that each is asked for many times, while it is queued, while it runs, and long after


def transfer(cls: type[AnyTransfer], number: int) -> AnyTransfer:
    """The transfer of this number, always the same."""
    source = number % ACCOUNTS
    target = (source + 1 + number % (ACCOUNTS - 1)) % ACCOUNTS
    return cls(number=number, source=source, target=target, amount=Decimal(number * 37 % 9_973 + 1) / 100)


def expected(numbers: set[int]) -> dict[int, Decimal]:
    """The balances after each of these transfers has been made once."""
    balance = dict.fromkeys(range(ACCOUNTS), OPENING)
    for each in (transfer(Transfer, number) for number in numbers):
        balance[each.source] -= each.amount
        balance[each.target] += each.amount
    return balance


class Play:
    """Workers that are killed and started again while transfers are asked for."""

    def __init__(self, database: str, engine: Engine, cls: type[AnyTransfer], workers: int, seed: int) -> None:
        self.database, self.engine, self.cls = database, engine, cls
        self.random, self.workers = random.Random(seed), workers
        self.asked: set[int] = set()
        self.queued = self.kills = 0

    def run(self, seconds: float, kill_every: tuple[float, float] | None) -> None:
        """Let it go for so long, and until some were queued again, then wait until every job is done."""
        with ExitStack() as stack:
            running = [self.start(stack) for _ in range(self.workers)]
            for worker in running:
                worker.wait_ready(60)
            end = time.monotonic() + seconds
            next_kill = time.monotonic() + self.random.uniform(*kill_every) if kill_every else end
            pace = threading.Event()
            while time.monotonic() < end or self.queued <= len(self.asked):
                self.ask()
                if kill_every and time.monotonic() >= next_kill:
                    running.pop(self.random.randrange(len(running))).close()  # SIGKILL
                    running.append(self.start(stack))
                    self.kills += 1
                    next_kill = time.monotonic() + self.random.uniform(*kill_every)
                pace.wait(self.random.uniform(0, 0.1))
            until(lambda: self.left() == 0, 60, every=0.05, what="every job is done")

    def start(self, stack: ExitStack) -> WorkerProcess:
        return stack.enter_context(WorkerProcess(self.database, "tests.jobs.money", concurrency=2))

    def ask(self) -> None:
        """Ask for a few transfers in one transaction; now and then it rolls back."""
        jobs = [transfer(self.cls, self.random.randrange(TRANSFERS)) for _ in range(5)]
        with OrmSession(self.engine) as session:
            session.add_all(jobs)
            session.flush()
            queued = [job.number for job in jobs if not job.is_repeat]
            if self.random.random() < 0.1:
                session.rollback()
            else:
                session.commit()
                self.asked |= {job.number for job in jobs}
                self.queued += len(queued)

    def left(self) -> int:
        """Jobs that are not done; a dead letter never is."""
        with OrmSession(self.engine) as session:
            return session.scalars(select(func.count()).select_from(Job)).one()


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_the_ledger_balances_to_the_cent(database: str, engine: Engine) -> None:
    open_bank(engine)
    seed = int(time.time())
    play = Play(database, engine, Transfer, workers=5, seed=seed)
    play.run(60 if LONG else 8, kill_every=(0.2, 1.0))
    print(f"seed {seed}: {play.kills} kills, {play.queued} jobs done")
    print(f"{len(play.asked)} transfers, {len(bookings(engine))} bookings")
    assert balances(engine) == expected(play.asked)
    assert bookings(engine) == sorted(play.asked)
    assert play.kills >= 5
    assert play.queued > len(play.asked), "a transfer was queued again after it had been booked"


def test_without_once_the_ledger_does_not_balance(database: str, engine: Engine) -> None:
    """The control: the key keeps a transfer from being queued twice at once, and from nothing else."""
    open_bank(engine)
    play = Play(database, engine, CarelessTransfer, workers=1, seed=1)
    play.run(2, kill_every=None)
    twice = [number for number, times in Counter(bookings(engine)).items() if times > 1]
    assert twice
    assert balances(engine) != expected(play.asked)
