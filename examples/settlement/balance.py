"""Does it balance? Every line is asked of the database; the producers add only what nobody else can know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rich.table import Table
from sqlalchemy import ColumnElement, func, select, text, union_all
from sqlalchemy.orm import Session, aliased

from magik_sa import Job

from .application import Produced
from .jobs import SettlePayment
from .models import Declined, Kill, LedgerEntry, Order, Payment, Posting, Start

LONGEST_PICK_UP = 5.0  # seconds; a busy worker gets to it within one poll, an idle one in less than a second

# Locks on jobs are advisory locks on one bigint (objsubid 1). An idle worker holds one on two ints beside them: the
# flag that asks to be woken.
JOB_LOCKS = text("""
SELECT count(*) FROM pg_locks
 WHERE locktype = 'advisory' AND objsubid = 1
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())""")


@dataclass(frozen=True)
class Line:
    """One line of the balance: what was found, what it must be, and whether it is."""

    what: str
    found: object
    must_be: object
    balanced: bool


def equal(what: str, found: object, must_be: object) -> Line:
    """A line that balances if both are the same."""
    return Line(what, found, must_be, found == must_be)


def settled(session: Session) -> int:
    """How many bookings there are."""
    return _count(session, LedgerEntry.id)


def quiet(session: Session) -> bool:
    """Whether nothing is left to do: no live job, and no lock on one."""
    return not jobs_left(session) and not session.scalar(JOB_LOCKS)


def jobs_left(session: Session) -> int:
    """Jobs that still wait or run."""
    return _count(session, Job.id, Job.finished_at.is_(None), Job.expired_at.is_(None))


def read(session: Session, produced: Produced) -> list[Line]:
    """The whole balance."""
    orders = _count(session, Order.id)
    return [
        *the_orders(session, produced, orders),
        *the_books(session),
        *the_queue(session, produced, orders),
        *the_kill(session),
    ]


def the_orders(session: Session, produced: Produced, orders: int) -> Iterator[Line]:
    """What committed is settled, once; what rolled back never was."""
    gone = len(produced.rolled_back)
    yield equal("orders committed", orders, produced.committed)
    yield equal("orders settled (ledger entries)", settled(session), orders)
    yield equal("orders not settled exactly once", _not_settled_once(session), 0)
    yield equal("payments", _count(session, Payment.id), orders)
    yield equal(f"traces of the {gone} orders rolled back", _traces(session, produced), 0)
    yield equal("savepoints rolled back in a commit", _count(session, Declined.order_id), produced.declined)


def the_books(session: Session) -> Iterator[Line]:
    """To the cent: what was debited was credited, and it is what the orders come to."""
    ordered = session.scalar(select(func.coalesce(func.sum(Order.amount), Decimal(0))))
    yield equal("debits", session.scalar(select(func.sum(Posting.debit))), ordered)
    yield equal("credits", session.scalar(select(func.sum(Posting.credit))), ordered)
    yield equal("entries whose sides differ", _lopsided(session), 0)


def the_queue(session: Session, produced: Produced, orders: int) -> Iterator[Line]:
    """Every order had one job, the repeats made none, and nothing stays behind."""
    yield equal(
        f"repeats, of {produced.jobs} jobs added: {orders} orders, and clicks again",
        produced.repeats,
        produced.jobs - orders,
    )
    yield equal("different jobs started", _count(session, Start.job_id.distinct()), orders)
    yield equal("dead letters", _count(session, Job.id, Job.expired_at.is_not(None)), 0)
    yield equal("jobs left", jobs_left(session), 0)
    yield equal("advisory locks left on jobs", session.scalar(JOB_LOCKS), 0)


def the_kill(session: Session) -> Iterator[Line]:
    """The jobs of the killed worker were begun again by the other, and soon."""
    seconds = _seconds_to_start_again(session)
    once, again = _count(session, Start.job_id.distinct()), len(seconds)
    yield Line("jobs begun again after the kill", again, ">= 1", again >= 1)
    yield equal("starts, those again included", _count(session, Start.id), once + again)
    shown = f"{seconds[0]:.3f}" if seconds else "never"
    in_time = bool(seconds) and seconds[0] < LONGEST_PICK_UP
    yield Line("seconds from the kill to the first again", shown, f"< {LONGEST_PICK_UP:g}", in_time)


def table(lines: list[Line]) -> Table:
    """The balance as it is printed."""
    table = Table("", "found", "must be", "", title="Balance")
    for column in table.columns[1:]:
        column.justify = "right"
    for line in lines:
        mark = "[green]ok[/]" if line.balanced else "[red]WRONG[/]"
        table.add_row(line.what, f"{line.found}", f"{line.must_be}", mark)
    return table


# ---- what is asked


def _count(session: Session, what: Any, *where: ColumnElement[bool]) -> int:
    return session.scalar(select(func.count(what)).where(*where)) or 0


def _not_settled_once(session: Session) -> int:
    """Orders with no booking, or several, or not marked as settled."""
    booked = (
        select(Order.id)
        .outerjoin(LedgerEntry, LedgerEntry.order_id == Order.id)
        .group_by(Order.id)
        .having((func.count(LedgerEntry.id) != 1) | Order.settled_at.is_(None))
    )
    return session.scalar(select(func.count()).select_from(booked.subquery())) or 0


def _traces(session: Session, produced: Produced) -> int:
    """Rows anywhere that tell of an order which was rolled back; a job that ran has left its start."""
    columns = (Order.id, Payment.order_id, LedgerEntry.order_id, Start.order_id, SettlePayment.order_id)
    found = union_all(*[select(column).where(column.in_(produced.rolled_back)) for column in columns])
    return session.scalar(select(func.count()).select_from(found.subquery())) or 0


def _lopsided(session: Session) -> int:
    """Bookings that do not balance by themselves."""
    entries = select(Posting.entry_id).group_by(Posting.entry_id)
    uneven = entries.having(func.sum(Posting.debit) != func.sum(Posting.credit))
    return session.scalar(select(func.count()).select_from(uneven.subquery())) or 0


def _seconds_to_start_again(session: Session) -> list[float]:
    """For each job of the killed worker that another began again: how long after the kill. The soonest first."""
    first, again = aliased(Start), aliased(Start)
    seconds = func.extract("epoch", func.min(again.started_at - Kill.killed_at))
    rows = session.scalars(
        select(seconds)
        .select_from(Kill)
        .join(first, first.pid == Kill.pid)
        .join(again, (again.job_id == first.job_id) & (again.pid != Kill.pid) & (again.started_at > Kill.killed_at))
        .group_by(again.job_id)
        .order_by(seconds)
    )
    return [float(value) for value in rows]
