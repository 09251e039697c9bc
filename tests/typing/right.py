"""A program that both type checkers accept, and whose types they know exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Self, assert_type
from uuid import UUID

from alembic import op
from pydantic import Field
from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, Mapped, Session, aliased, scoped_session, sessionmaker

from magik_sa import Job, Retries, Schedule, arg, bulk_enqueue, once, policy
from magik_sa.migrations import MagikDowngrade, MagikUpgrade
from magik_sa.testing import Clock, Drain, Enqueued, Found, Outcome, Ran, drain, enqueued, perform


class TenantGone(Exception): ...


class TenantJob(Job, queue="tenants"):
    __abstract__ = True

    tenant_id: Mapped[UUID] = arg()


class SettleBatch(TenantJob, policy="settle", queue="payments", priority=50, name="settle"):
    retries = Retries(times=3, backoff="exponential", base="5s", cap=timedelta(hours=2))
    idempotent_by = "tenant_id"
    discard_on = (TenantGone,)
    money = True
    keep = "7d"
    schedule = Schedule(every="10m")

    dry_run: Mapped[bool] = arg(default=False)
    limit: Mapped[Annotated[int, Field(gt=0)]] = arg(default=10)
    tags: Mapped[list[str]] = arg(default_factory=list)
    note: Mapped[str | None] = arg(default=None, sensitive=True)
    bare: Mapped[int]

    def perform(self, session: Session) -> None:
        assert_type(self.tenant_id, UUID)
        assert_type(self.stopping, bool)

    def on_failure(self, session: Session, error: BaseException) -> None:
        session.add(SettleBatch(tenant_id=self.tenant_id, bare=0))

    @classmethod
    def on_schedule(cls, session: Session) -> Iterable[Self]:
        yield cls(tenant_id=T, bare=0)


class Report(Job, policy="system"):
    schedule = (
        Schedule(cron="0 3 * * *", zone="Europe/Paris", name="eu", args={"region": "eu"}),
        Schedule(every=timedelta(hours=1), args={"region": "us"}),
    )

    region: Mapped[str] = arg()

    def perform(self, session: Session) -> None: ...


class Regions(Report):
    @classmethod
    def on_schedule(cls, session: Session, region: str, *, most: int = 2) -> Iterator[Self]:
        return iter([cls(region=region)][:most])


class Mixed(Job, policy="system"):
    @classmethod
    def on_schedule(cls, session: Session) -> Iterator[Job]:
        yield cls()
        yield Report(region="eu")

    def perform(self, session: Session) -> None: ...


class Unscheduled(Job, policy="system"):
    schedule = None

    def perform(self, session: Session) -> None: ...


T = UUID(int=1)

# The constructor: required arguments, optional ones, and the four options that every job takes.
job = SettleBatch(tenant_id=T, bare=3)
SettleBatch(tenant_id=T, bare=3, dry_run=True, limit=3, tags=["x"], note="n")
SettleBatch(tenant_id=T, bare=3, run_at=datetime.now(UTC))
SettleBatch(tenant_id=T, bare=3, run_at=func.now(), queue="other", priority=3)
SettleBatch(tenant_id=T, bare=3, delay="10m")
SettleBatch(tenant_id=T, bare=3, delay=timedelta(minutes=10))

# On a job: values.
assert_type(job, SettleBatch)
assert_type(job.tenant_id, UUID)
assert_type(job.dry_run, bool)
assert_type(job.limit, int)
assert_type(job.tags, list[str])
assert_type(job.note, str | None)
assert_type(job.bare, int)
assert_type(job.id, UUID)
assert_type(job.run_at, datetime)
assert_type(job.queue, str)
assert_type(job.priority, int)
assert_type(job.last_error, str | None)
assert_type(job.finished_at, datetime | None)
assert_type(job.is_repeat, bool)
assert_type(job.repeat_of, UUID | None)
job.dry_run = True
job.run_at = datetime.now(UTC)

# On the class: SQL expressions.
assert_type(SettleBatch.tenant_id, InstrumentedAttribute[UUID])
assert_type(SettleBatch.tenant_id == T, ColumnElement[bool])
asked = select(SettleBatch).where(SettleBatch.tenant_id == T, SettleBatch.limit > 3).order_by(SettleBatch.bare.desc())
delete(SettleBatch).where(SettleBatch.tenant_id.in_([T]))
update(SettleBatch).where(SettleBatch.note.is_(None)).values(priority=1)
other = aliased(SettleBatch)
select(other.tenant_id).where(other.dry_run)


def ask(session: Session) -> None:
    session.add(job)
    assert_type(session.scalars(asked).one(), SettleBatch)
    assert_type(session.scalars(select(SettleBatch.tenant_id)).one(), UUID)
    assert_type(session.get(SettleBatch, T), SettleBatch | None)


@policy("settle")
def may_settle(job: SettleBatch, session: Session) -> bool:
    return job.dry_run


assert_type(may_settle(job, Session()), bool)


# What a tick makes, and when the next one is.
def tick(session: Session, now: datetime) -> None:
    assert_type(list(Report.on_schedule(session, region="eu")), list[Job])
    assert_type(list(Regions.on_schedule(session, "eu")), list[Regions])
    assert_type(Schedule(every="10m").first(now), datetime)
    assert_type(Report.__magik__.schedules, tuple[Schedule, ...])


# In tests.
def kit(session: Session, sessions: sessionmaker[Session], scoped: scoped_session[Session]) -> None:
    assert_type(enqueued(session, SettleBatch, tenant_id=T, queue="payments"), Found[SettleBatch])
    assert_type(enqueued(sessions, SettleBatch)[0].tenant_id, UUID)
    assert_type([job.queue for job in enqueued(scoped, TenantJob)], list[str])
    assert_type(drain(session, queue="payments", limit=5, raises=True), list[Ran])
    assert_type([(ran.cls, ran.outcome, ran.error) for ran in drain(sessions)],
                list[tuple[type[Job], Outcome, BaseException | None]])  # fmt: skip
    perform(SettleBatch(tenant_id=T, bare=3), session)
    Clock(scoped).move("1h")
    Clock(session).move_to(datetime.now(UTC) + timedelta(days=1))
    assert_type(Clock(session).moved, timedelta)


def with_fixtures(magik_enqueued: Enqueued, magik_drain: Drain, magik_clock: Clock) -> None:
    assert_type(magik_enqueued(SettleBatch, limit=3), Found[SettleBatch])
    assert_type(magik_drain(raises=True), list[Ran])
    magik_clock.move(timedelta(hours=1))


async def asynchronously(session: AsyncSession) -> None:
    assert_type(await session.run_sync(drain), list[Ran])
    assert_type(await session.run_sync(enqueued, SettleBatch, tenant_id=T), Found[SettleBatch])


# In a revision.
def upgrade() -> None:
    op.invoke(MagikUpgrade(version=1))


def downgrade() -> None:
    op.invoke(MagikDowngrade(version=0, since=1))


# Many at once, and what happens once.
def close_month(session: Session, sessions: scoped_session[Session]) -> None:
    assert_type(bulk_enqueue(session, [job]), int)
    bulk_enqueue(sessions, (SettleBatch(tenant_id=T, bare=number) for number in range(3)), wake=False)
    assert_type(bulk_enqueue(session, SettleBatch, [{"tenant_id": T, "bare": 3}], delay="1h", queue="slow"), int)
    assert_type(once(session, job), bool)
    once(sessions, [T, "close"], scope="month")
