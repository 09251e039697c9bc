"""The application: a few threads place orders, in transactions that commit, repeat themselves, or roll back.

Placing an order is two lines, `session.add(order)` and `session.add(SettlePayment(…))`. There is nothing else to do in
any of the transactions below: whatever becomes of the order becomes of its job.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from uuid import UUID

from sqlalchemy.orm import Session, sessionmaker

from .jobs import SettlePayment
from .models import Declined, Order, Tenant

TENANTS = ("Alder & Sons", "Bluebird Books", "Cartographer's", "Dry Dock")
THREADS = 4

Sessions = sessionmaker[Session]


class CardDeclined(Exception):
    """What makes a transaction roll back."""


@dataclass(frozen=True)
class Purchase:
    """What a customer is about to buy, and how that will end."""

    order_id: UUID
    tenant: str
    amount: Decimal
    ending: Ending


# ---- the transactions; each returns the jobs that it added and committed


def place(session: Session, purchase: Purchase) -> SettlePayment:
    """Add the order and its job to the unit of work."""
    job = SettlePayment(order_id=purchase.order_id)
    session.add(Order(id=purchase.order_id, tenant_id=tenant_id(purchase.tenant), amount=purchase.amount))
    session.add(job)
    return job


def buy(sessions: Sessions, purchase: Purchase) -> list[SettlePayment]:
    """The plain case."""
    with sessions.begin() as session:
        return [place(session, purchase)]


def buy_with_a_double_click(sessions: Sessions, purchase: Purchase) -> list[SettlePayment]:
    """The same job twice in one transaction: the second is a repeat, and the transaction does not mind."""
    with sessions.begin() as session:
        first, again = place(session, purchase), SettlePayment(order_id=purchase.order_id)
        session.add(again)
    return [first, again]


def buy_and_submit_again(sessions: Sessions, purchase: Purchase) -> list[SettlePayment]:
    """The same job again in a later transaction.

    The queue keeps out a repeat of a job that is still there. The job and `settled_at` change in one transaction, so
    under a lock on the order either the job is there, or the order says that it is settled.
    """
    jobs = buy(sessions, purchase)
    with sessions.begin() as session:
        order = session.get_one(Order, purchase.order_id, with_for_update={"key_share": True})
        if order.settled_at is None:
            jobs.append(SettlePayment(order_id=order.id))
            session.add(jobs[-1])
    return jobs


def raise_out_of_begin(sessions: Sessions, purchase: Purchase) -> list[SettlePayment]:
    """An exception leaves the block: everything rolls back, the job too."""
    with suppress(CardDeclined), sessions.begin() as session:
        place(session, purchase)
        session.flush()
        raise CardDeclined
    return []


def decline_in_a_savepoint(sessions: Sessions, purchase: Purchase) -> list[SettlePayment]:
    """The savepoint rolls back with the order and the job; the transaction around it commits what else it wrote."""
    with sessions.begin() as session:
        session.add(Declined(order_id=purchase.order_id, reason="card declined"))
        with suppress(CardDeclined), session.begin_nested():
            place(session, purchase)
            session.flush()
            raise CardDeclined
    return []


def think_better_of_it(sessions: Sessions, purchase: Purchase) -> list[SettlePayment]:
    """`session.rollback()`, after the rows had been written."""
    with sessions() as session:
        place(session, purchase)
        session.flush()
        session.rollback()
    return []


class Ending(Enum):
    """How a purchase ends: the transaction that it takes, and whether the order is there afterwards."""

    BOUGHT = buy, True
    DOUBLED = buy_with_a_double_click, True
    RESUBMITTED = buy_and_submit_again, True
    RAISED = raise_out_of_begin, False
    DECLINED = decline_in_a_savepoint, False
    ROLLED_BACK = think_better_of_it, False

    def __init__(self, transact: Callable[[Sessions, Purchase], list[SettlePayment]], commits: bool) -> None:
        self.transact, self.commits = transact, commits


# ---- who buys what


def plan(orders: int, seed: int) -> list[Purchase]:
    """The purchases of a run, the same for the same seed: a third rolls back, a quarter of the rest repeats its job."""
    chance = random.Random(seed)
    return [
        Purchase(
            order_id=UUID(int=chance.getrandbits(128), version=4),
            tenant=chance.choice(TENANTS),
            amount=Decimal(chance.randint(100, 50_000)) / 100,
            ending=ending,
        )
        for ending in _endings(orders, chance)
    ]


def _endings(orders: int, chance: random.Random) -> list[Ending]:
    failures = (Ending.RAISED, Ending.DECLINED, Ending.ROLLED_BACK)
    endings = [failures[n % 3] for n in range(orders // 3)]
    endings += [(Ending.DOUBLED, Ending.RESUBMITTED)[n % 2] for n in range(orders // 6)]
    endings += [Ending.BOUGHT] * (orders - len(endings))
    chance.shuffle(endings)
    return endings


def tenant_id(name: str) -> UUID:
    """The id of a tenant, made from its name."""
    return UUID(int=1 + TENANTS.index(name), version=4)


def open_shops(sessions: Sessions) -> None:
    """The tenants, before anybody buys."""
    with sessions.begin() as session:
        session.add_all(Tenant(id=tenant_id(name), name=name) for name in TENANTS)


# ---- the threads


@dataclass
class Produced:
    """What only the producers can know: what they rolled back, and which of their jobs were repeats."""

    purchases: list[Purchase]
    ended: list[tuple[Purchase, list[SettlePayment]]] = field(default_factory=list)
    futures: list[Future[None]] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Whether every purchase has ended; raises what one of them raised."""
        return all(future.done() and future.result() is None for future in self.futures)

    @property
    def committed(self) -> int:
        return sum(purchase.ending.commits for purchase, _ in self.ended)

    @property
    def rolled_back(self) -> list[UUID]:
        return [purchase.order_id for purchase, _ in self.ended if not purchase.ending.commits]

    @property
    def declined(self) -> int:
        return sum(purchase.ending is Ending.DECLINED for purchase, _ in self.ended)

    @property
    def jobs(self) -> int:
        return sum(len(jobs) for _, jobs in self.ended)

    @property
    def repeats(self) -> int:
        return sum(job.is_repeat for _, jobs in self.ended for job in jobs)

    def make(self, sessions: Sessions, purchase: Purchase) -> None:
        """Carry one purchase to its end."""
        self.ended.append((purchase, purchase.ending.transact(sessions, purchase)))


@contextmanager
def producing(sessions: Sessions, produced: Produced) -> Iterator[None]:
    """Have a few threads make the purchases while the block goes on."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="producer") as threads:
        produced.futures += [threads.submit(produced.make, sessions, purchase) for purchase in produced.purchases]
        try:
            yield
        finally:
            threads.shutdown(cancel_futures=True)
