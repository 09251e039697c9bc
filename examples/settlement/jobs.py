"""The application's jobs. The worker is told of this module: ``python -m magik_sa.worker examples.settlement.jobs``."""

from __future__ import annotations

import os
import random
import time
from decimal import ROUND_HALF_EVEN, Decimal
from functools import cache
from uuid import UUID

from sqlalchemy import Engine, create_engine, func, insert
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, arg, policy

from .models import LedgerEntry, Order, Payment, Posting, Start

QUEUE = "payments"
CAPTURE_SECONDS = (0.25, 0.45)  # how long the card network takes


@policy("settle")
def may_settle(job: SettlePayment, session: Session) -> bool:
    """Settle orders that exist, for tenants that are active."""
    order = session.get(Order, job.order_id)
    return order is not None and order.tenant.active


class SettlePayment(Job, policy="settle", queue=QUEUE):
    """Capture the payment of one order and book it."""

    retries = Retries(times=5, base="1s")
    idempotent_by = "order_id"  # however often the customer clicks, one live job an order

    order_id: Mapped[UUID] = arg()

    def perform(self, session: Session) -> None:
        """The slow work first, while no transaction is open; the writing last, with the end of the job itself."""
        record_start(self)
        reference = capture(idempotency_key=self.order_id)
        order = session.get_one(Order, self.order_id)
        order.settled_at = func.now()
        session.add_all(bookings(order, reference))


def capture(idempotency_key: UUID) -> str:
    """Ask the card network for the money; returns its reference, the same one for the same key.

    A job asks again after its worker was killed: what happens outside the Session happens at least once.
    """
    time.sleep(random.uniform(*CAPTURE_SECONDS))
    return f"capture-{idempotency_key}"


def bookings(order: Order, reference: str) -> list[Payment | LedgerEntry]:
    """The payment of an order, and its booking: what the card network owes us, what we owe the tenant, our fee."""
    fee = fee_of(order.amount)
    postings = [
        Posting(account="card network", debit=order.amount),
        Posting(account=f"tenant {order.tenant.name}", credit=order.amount - fee),
        Posting(account="fees", credit=fee),
    ]
    return [
        Payment(order_id=order.id, amount=order.amount, fee=fee, reference=reference),
        LedgerEntry(order_id=order.id, postings=postings),
    ]


def fee_of(amount: Decimal) -> Decimal:
    """2.9 % and thirty cents, to the cent."""
    return (amount * Decimal("0.029") + Decimal("0.30")).quantize(Decimal("0.01"), ROUND_HALF_EVEN)


# ---- the diary


def record_start(job: SettlePayment) -> None:
    """Note that this process begins the job, on a connection that commits by itself."""
    with _diary().connect() as connection:
        connection.execute(insert(Start).values(job_id=job.id, order_id=job.order_id, pid=os.getpid()))


@cache
def _diary() -> Engine:
    """The diary's own few connections: the worker's pool has exactly one a thread, and they are taken."""
    return create_engine(os.environ["MAGIK_DATABASE_URL"], isolation_level="AUTOCOMMIT", pool_size=4, max_overflow=0)
