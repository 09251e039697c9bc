"""A program full of mistakes. Each marked line has to be reported, and no other: `wrong` by both type checkers."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, Schedule, arg, policy
from magik_sa.testing import Clock, drain, enqueued, perform


class SettleBatch(Job, policy="system"):
    tenant_id: Mapped[UUID] = arg()
    dry_run: Mapped[bool] = arg(default="no")  # wrong
    tags: Mapped[list[int]] = arg(default_factory=lambda: ["x"])  # wrong

    def perform(self, session: Session) -> None: ...


class Options(Job, policy="system"):
    retries = 5  # wrong
    idempotent_by = 3  # wrong
    discard_on = ("TenantGone",)  # wrong
    keep = 7  # wrong
    money = "yes"  # wrong

    schedule = "10m"  # wrong

    def perform(self) -> None: ...

    @classmethod
    def on_schedule(cls, session: Session) -> int:  # wrong
        return 5


# mypy checks no header of a class whose metaclass is not `type`, and SQLAlchemy's has one.
class Header(Job, polciy="system", priority="high"):  # wrong: pyright
    def perform(self, session: Session) -> None: ...


T = UUID(int=1)
SettleBatch()  # wrong
SettleBatch(T)  # wrong
SettleBatch(tenant_id=1)  # wrong
SettleBatch(tenant=T)  # wrong
SettleBatch(tenant_id=T, id=T)  # wrong
SettleBatch(tenant_id=T, args={})  # wrong
SettleBatch(tenant_id=T, version=1)  # wrong
SettleBatch(tenant_id=T, run_at="tomorrow")  # wrong
SettleBatch(tenant_id=T, delay=10)  # wrong
SettleBatch(tenant_id=T, queue=10)  # wrong
SettleBatch(tenant_id=T, priority="high")  # wrong

job = SettleBatch(tenant_id=T)
job.tenant_id = "x"  # wrong
print(job.tenant)  # wrong
print(SettleBatch.tenant)  # wrong
Retries(times="3")  # wrong
Retries(backoff="quadratic")  # wrong

Schedule("10m")  # wrong
Schedule(every=10)  # wrong
Schedule(cron="* * * * *", zone=None, args=["tenant"])  # wrong
Schedule(every="10m").every = "5m"  # wrong
list(SettleBatch.on_schedule("session"))  # wrong


@policy("settle")  # wrong
def may_settle(job: SettleBatch) -> bool:
    return job.dry_run


def kit(session: Session, asynchronous: AsyncSession) -> None:
    drain(asynchronous)  # wrong
    drain("postgresql://")  # wrong
    drain(session, 5)  # wrong
    drain(session, raise_errors=True)  # wrong
    print(drain(session)[0].outcom)  # wrong
    enqueued(session, Retries)  # wrong
    print(enqueued(session, SettleBatch)[0].tenant)  # wrong
    perform(SettleBatch, session)  # wrong
    Clock(session).move(3600)  # wrong
    Clock(session).move_to("tomorrow")  # wrong
