"""Many transactions and few keys: the unique index decides, nobody sees an error, nobody waits in a circle."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from magik_sa import Job, arg, enqueue
from tests.tools.waiting import until


class Base(DeclarativeBase):
    """The application's own tables."""


class Booking(Base):
    __tablename__ = "bookings"
    id: Mapped[int] = mapped_column(primary_key=True)


class Contended(Job, policy="system"):
    idempotent_by = "number"
    number: Mapped[int] = arg()

    def perform(self, session: Session) -> None: ...


@pytest.fixture
def sessions(engine: Engine) -> Any:
    """sessions on an engine with room for many threads; all of their connections stand before a race begins."""
    wide = create_engine(engine.url, pool_size=24)
    Base.metadata.create_all(wide)
    connections = [wide.connect() for _ in range(20)]
    for connection in connections:
        connection.close()
    yield sessionmaker(wide)
    wide.dispose()


def waiting(engine: Engine) -> int:
    """How many sessions wait for a lock."""
    asked = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with engine.connect() as connection:
        return int(connection.execute(asked).scalar_one())


def live(sessions: Any) -> list[int]:
    with sessions() as session:
        return sorted(job.number for job in session.scalars(select(Contended)))


@pytest.mark.slow
def test_twenty_threads_adding_one_key_at_once(sessions: Any) -> None:
    start, rounds = Barrier(20), 30

    def add(number: int) -> Contended:
        start.wait()
        job = Contended(number=number)
        with sessions() as session, session.begin():
            session.add_all([Booking(), job])
        return job

    with ThreadPoolExecutor(20) as pool:
        for number in range(rounds):
            jobs = list(pool.map(add, [number] * 20))
            winners = [job.id for job in jobs if not job.is_repeat]
            assert len(winners) == 1
            assert {job.repeat_of for job in jobs if job.is_repeat} == {*winners}
    assert live(sessions) == list(range(rounds))
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(Booking)) == 20 * rounds


@pytest.mark.parametrize("commits", [True, False])
def test_an_add_waits_until_it_knows_how_the_other_transaction_ends(
    sessions: Any, engine: Engine, commits: bool
) -> None:
    added, second = Event(), Contended(number=7)

    def add_second() -> None:
        with sessions() as session, session.begin():
            session.add_all([Booking(), second])
            added.set()

    with ThreadPoolExecutor(1) as pool, sessions() as session:
        first = Contended(number=7)
        session.add(first)
        session.flush()
        other = pool.submit(add_second)
        added.wait()
        until(lambda: waiting(engine))
        assert not other.done()
        session.commit() if commits else session.rollback()
        other.result(30)
    assert second.is_repeat is commits
    assert second.repeat_of == (first.id if commits else None)
    assert live(sessions) == [7]
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(Booking)) == 1


def test_under_repeatable_read_a_lost_race_is_told_and_nothing_is_lost(sessions: Any, engine: Engine) -> None:
    strict = sessionmaker(engine.execution_options(isolation_level="REPEATABLE READ"))
    with strict() as session:
        session.scalar(select(1))
        with sessions() as other, other.begin():
            other.add(Contended(number=7))
        session.add(Contended(number=7))
        with pytest.raises(OperationalError) as refused:
            session.commit()
        assert getattr(refused.value.orig, "sqlstate", None) == "40001"
    assert live(sessions) == [7]


def cross(sessions: Any, engine: Engine, number: int) -> None:
    """Two transactions add the same 300 keys in opposite order. Both are at it: a third has one from the middle."""

    def add(numbers: list[int]) -> None:
        with sessions() as session, session.begin():
            session.add_all([Contended(number=number) for number in numbers])

    numbers = list(range(number * 300, (number + 1) * 300))
    with ThreadPoolExecutor(2) as pool, sessions() as third:
        third.add(Contended(number=numbers[150]))
        third.flush()
        both = [pool.submit(add, numbers), pool.submit(add, numbers[::-1])]
        until(lambda: waiting(engine) == 2)
        third.rollback()
        for added in both:
            added.result(60)


@pytest.mark.slow
def test_the_same_keys_in_opposite_order_do_not_deadlock(sessions: Any, engine: Engine) -> None:
    for number in range(30):
        cross(sessions, engine, number)
    assert live(sessions) == list(range(9_000))


def test_without_the_ordering_they_do(sessions: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: were this to pass, the test above would prove nothing."""
    monkeypatch.setattr(enqueue, "_order", lambda _: None)
    with pytest.raises(OperationalError, match="deadlock detected"):
        cross(sessions, engine, 0)


def test_keyed_jobs_keep_the_places_of_keyed_jobs_among_the_others(sessions: Any) -> None:
    class Amid(Job, policy="system"):
        number: Mapped[int] = arg()

        def perform(self, session: Session) -> None: ...

    with sessions() as session:
        session.add_all([job for number in range(20) for job in (Amid(number=number), Contended(number=number))])
        session.commit()
        rows: Callable[[type[Job]], Any] = lambda cls: session.scalars(select(cls).order_by(text("ctid"))).all()  # noqa: E731
        assert [job.number for job in rows(Amid)] == list(range(20))
        digests = [job.key_digest for job in rows(Contended)]
        assert digests == sorted(digests)
        assert [job.id for job in rows(Contended)] != sorted(job.id for job in rows(Contended))
