"""Ways to spoil a run behind the queue's back: a balance that cannot be wrong would prove nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from .jobs import SettlePayment, bookings
from .models import Order


def lost_job(session: Session) -> bool:
    """A job disappears while it waits, and its order looks settled: nobody will add the job again."""
    latest = select(SettlePayment).order_by(SettlePayment.run_at.desc()).limit(1).with_for_update(skip_locked=True)
    job = session.scalars(latest).first()
    if job is None:
        return False
    session.execute(delete(SettlePayment).where(SettlePayment.id == job.id))
    session.execute(update(Order).where(Order.id == job.order_id).values(settled_at=func.now()))
    session.commit()
    return True


def booked_twice(session: Session) -> bool:
    """An order is booked a second time."""
    order = session.scalars(select(Order).where(Order.settled_at.is_not(None)).limit(1)).one()
    session.add_all(bookings(order, "capture-sabotage"))
    session.commit()
    return True


Kinds = Mapping[str, Callable[[Session], bool]]

BEFORE_THE_KILL: Kinds = {"lost-job": lost_job}
AFTER_THE_WORK: Kinds = {"booked-twice": booked_twice}
KINDS = (*BEFORE_THE_KILL, *AFTER_THE_WORK)
