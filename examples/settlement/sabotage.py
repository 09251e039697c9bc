"""Ways to spoil a run behind the queue's back: a balance that cannot be wrong would prove nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from .jobs import SettlePayment, bookings
from .models import Order


def lost_job(session: Session) -> bool:
    """A job disappears before it is booked, and its order looks settled: nobody will add the job again.

    The order is locked before the job, as by a worker that books it: the other way round each could wait for the other.
    """
    job = session.scalars(select(SettlePayment).order_by(SettlePayment.run_at.desc()).limit(1)).first()
    if job is None:
        return False
    free = select(Order).where(Order.id == job.order_id, Order.settled_at.is_(None)).with_for_update(skip_locked=True)
    order = session.scalars(free).first()
    lost = delete(SettlePayment).where(SettlePayment.id == job.id).returning(SettlePayment.id)
    if order is None or session.scalar(lost) is None:
        return False
    order.settled_at = func.now()
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
