"""A producer as a process: transactions that commit and roll back, by every door, until it is told to stop."""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections.abc import Callable
from decimal import Decimal

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from magik_sa import Job, bulk_enqueue
from tests.jobs.money import ACCOUNTS

from .jobs import Chain, Doomed, Flaky, Long, Mail, OneOfAKey, Overlong, Payment, Simple
from .record import tell

PAYMENTS = 400  # so few that each is asked for again and again
PAUSE = (0.03, 0.21)  # seconds between two transactions


def payment(number: int) -> Payment:
    """The payment of this number, always the same."""
    source = number % ACCOUNTS
    target = (source + 1 + number % (ACCOUNTS - 1)) % ACCOUNTS
    return Payment(number=number, source=source, target=target, amount=Decimal(number * 37 % 9_973 + 1) / 100)


Maker = Callable[[random.Random], Job]
MAKERS: dict[Maker, int] = {  # and how often each is chosen
    lambda chance: Simple(seconds=chance.choice([0, 0, 0, 0.02, 0.2])): 30,
    lambda _: Mail(): 15,
    lambda chance: Simple(delay=f"{chance.randrange(100, 3_000)}ms"): 10,
    lambda chance: OneOfAKey(number=chance.randrange(40)): 15,
    lambda chance: payment(chance.randrange(PAYMENTS)): 20,
    lambda chance: Chain(name=str(chance.getrandbits(40))): 3,
    lambda chance: Long(parts=chance.randrange(5, 25)): 3,
    lambda _: Flaky(): 4,
    lambda _: Overlong(): 2,
    lambda _: Doomed(): 3,
}


class Producer:
    """Transactions one after the other. What the database refuses is given up; the next one is another."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine, self.chance = engine, random.Random(seed)

    def once(self) -> None:
        """One transaction."""
        jobs = self.some(20 if self.chance.random() < 0.05 else self.chance.randrange(1, 5))
        tell("asked", jobs)
        with Session(self.engine) as session:
            try:
                going, left = self.add(session, jobs)
            except SQLAlchemyError:  # a commit was not even asked for
                tell("undone", jobs)
                return
            repeats = [job for job in going if job.is_repeat]
            session.commit()
        tell("repeat", repeats)
        tell("committed", [job for job in going if job not in repeats])
        tell("undone", left)

    def some(self, number: int) -> list[Job]:
        """So many jobs of any kinds."""
        makers = self.chance.choices(list(MAKERS), list(MAKERS.values()), k=number)
        return [maker(self.chance) for maker in makers]

    def add(self, session: Session, jobs: list[Job]) -> tuple[list[Job], list[Job]]:
        """By one of the ways; which of the jobs a commit would bring, and which it would not."""
        match self.chance.randrange(10):
            case 0:
                session.add_all(jobs)
                session.flush()
                session.rollback()
                return [], jobs
            case 1:
                session.add_all(jobs[1:])
                with session.begin_nested() as savepoint:
                    session.add(jobs[0])
                    session.flush()
                    savepoint.rollback()
                return jobs[1:], jobs[:1]
            case 2 | 3:
                bulk_enqueue(session, jobs)
            case _:
                session.add_all(jobs)
                session.flush()
        return jobs, []


def main() -> None:
    """``python -m tests.chaos.producer URL SEED``; ends at SIGTERM, after the transaction at hand."""
    url, seed = sys.argv[1:]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    engine = create_engine(url, connect_args={"application_name": "producer"}, pool_pre_ping=True)
    producer = Producer(engine, int(seed))
    while not stop.wait(producer.chance.uniform(*PAUSE)):
        try:
            producer.once()
        except SQLAlchemyError as error:
            print(type(error).__name__, str(error).splitlines()[0], file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
