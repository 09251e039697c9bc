"""A repeat changes nothing, raises nothing, and leaves the caller's transaction whole."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, event, func, select, text
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import scoped_session, sessionmaker

from tests.jobs.shop import Order, Packing, Paying, Settling, open_shop
from tests.tools import asking
from tests.tools.workers import environment

Opened = Callable[[Engine], AbstractContextManager[OrmSession]]


@contextmanager
def plain(engine: Engine) -> Iterator[OrmSession]:
    """A Session that the caller commits."""
    with OrmSession(engine) as session:
        yield session
        session.commit()


@contextmanager
def scoped(engine: Engine) -> Iterator[OrmSession]:
    """The registry of a web application."""
    registry = scoped_session(sessionmaker(engine))
    try:
        yield registry()
        registry.commit()
    finally:
        registry.remove()


@contextmanager
def begun(engine: Engine) -> Iterator[OrmSession]:
    """A block that commits."""
    with OrmSession(engine) as session, session.begin():
        yield session


@contextmanager
def joined(engine: Engine) -> Iterator[OrmSession]:
    """A Session within a transaction of the caller's own, as test suites have it."""
    with (
        engine.begin() as connection,
        OrmSession(connection, join_transaction_mode="create_savepoint") as session,
    ):
        yield session
        session.commit()


every_way = pytest.mark.parametrize("opened", [plain, scoped, begun, joined])


@pytest.fixture
def waiting(engine: Engine) -> UUID:
    """The id of the job that waits under tenant 7's key."""
    open_shop(engine)
    with OrmSession(engine) as session, session.begin():
        session.add(job := Settling(tenant=7))
    return job.id


def keys(engine: Engine) -> list[int]:
    """The tenants that have a live job, each as often as it has one."""
    with OrmSession(engine) as session:
        return list(session.scalars(select(Settling.tenant).order_by(Settling.tenant)))


def orders(engine: Engine) -> int:
    """How many business rows were committed."""
    with OrmSession(engine) as session:
        return session.scalar(select(func.count()).select_from(Order)) or 0


@every_way
def test_the_order_beside_a_repeat_is_committed(opened: Opened, engine: Engine, waiting: UUID) -> None:
    with opened(engine) as session:
        session.add_all([Order(number=1), job := Settling(tenant=7), other := Paying(tenant=7)])
        session.flush()
        assert (job.is_repeat, job.repeat_of) == (True, waiting)
        assert (other.is_repeat, other.repeat_of) == (False, None)
        assert job not in session
        session.add(Order(number=2))
    assert keys(engine) == [7]
    assert orders(engine) == 2


@every_way
def test_of_fifty_jobs_with_five_repeats_each_new_key_gets_one(opened: Opened, engine: Engine, waiting: UUID) -> None:
    tenants = [7, *range(100, 145), 100, 101, 144, 7]
    jobs = [Settling(tenant=tenant) for tenant in tenants]
    with opened(engine) as session:
        session.add(Order(number=1))
        session.add_all(jobs)
    assert len(jobs) == 50
    assert sorted(job.tenant for job in jobs if job.is_repeat) == [7, 7, 100, 101, 144]
    assert keys(engine) == [7, *range(100, 145)]
    assert orders(engine) == 1
    live = {job.tenant: job.id for job in jobs if not job.is_repeat} | {7: waiting}
    assert all(job.repeat_of == live[job.tenant] for job in jobs if job.is_repeat)


@every_way
def test_a_repeat_found_by_an_autoflush_is_one_like_any_other(opened: Opened, engine: Engine, waiting: UUID) -> None:
    with opened(engine) as session:
        session.add_all([Order(number=1), job := Settling(tenant=7), new := Settling(tenant=8)])
        assert set(session.scalars(select(Settling.id))) == {waiting, new.id}
        assert job.is_repeat
        session.add_all([again := Settling(tenant=8), Order(number=2)])
        assert session.scalar(select(func.count()).select_from(Order)) == 2
        assert again.repeat_of == new.id
    assert keys(engine) == [7, 8]
    assert orders(engine) == 2


def test_the_session_goes_on_after_a_repeat(engine: Engine, waiting: UUID) -> None:
    with OrmSession(engine) as session:
        session.add(job := Settling(tenant=7))
        session.commit()
        assert job.repeat_of == waiting
        live = session.get_one(Settling, waiting)
        session.delete(live)
        session.flush()
        session.add(job)  # the key is free now: the same object becomes a job
        session.commit()
        assert not job.is_repeat
        assert session.scalars(select(Settling.id)).all() == [job.id]
        session.add(Order(number=1))
        session.rollback()
        session.add(Order(number=2))
        session.commit()
    assert orders(engine) == 1


def test_a_repeat_leaves_the_waiting_row_as_it_was(engine: Engine, waiting: UUID) -> None:
    def row() -> object:
        with OrmSession(engine) as session:
            return session.execute(text("SELECT *, xmin, ctid FROM magik_jobs")).one()

    before = row()
    for _ in range(10):
        with OrmSession(engine) as session, session.begin():
            session.add(Settling(tenant=7, priority=1, queue="other", delay="1h"))
    assert row() == before


def test_only_a_live_job_holds_its_key(engine: Engine, waiting: UUID) -> None:
    for ended in ("finished_at", "expired_at"):
        with OrmSession(engine) as session, session.begin():
            session.execute(text(f"UPDATE magik_jobs SET {ended} = now() WHERE finished_at IS NULL"))
            session.add(job := Settling(tenant=7))
            session.flush()
            assert not job.is_repeat
    assert keys(engine) == [7, 7, 7]


def test_jobs_without_a_key_are_never_repeats(engine: Engine, waiting: UUID) -> None:
    jobs = [Packing(number=1) for _ in range(20)]
    with OrmSession(engine) as session, session.begin():
        session.add_all(jobs)
    assert not any(job.is_repeat for job in jobs)
    with OrmSession(engine) as session:
        assert session.scalar(select(func.count()).select_from(Packing)) == 20


REFUSED = """
from sqlalchemy import Table, create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from magik_sa.table import JobTable
from tests.jobs.shop import Settling
import os

del JobTable.insert
with Session(create_engine(os.environ["MAGIK_DATABASE_URL"])) as session:
    session.add(Settling(tenant=7))
    try:
        session.commit()
    except IntegrityError as error:
        print(error.orig.diag.constraint_name)
"""


def test_control_without_on_conflict_a_repeat_breaks_the_transaction_off(database: str, waiting: UUID) -> None:
    env = environment(database, None, {})
    ended = asking.run([sys.executable, "-c", REFUSED], env=env)
    assert (ended.stdout.strip(), ended.stderr) == (b"magik_jobs_key", b"")


def test_the_flush_asks_the_table_for_its_insert(engine: Engine, waiting: UUID) -> None:
    """What all of this stands on: an INSERT of the ORM's says ON CONFLICT."""
    said: list[str] = []
    logged = create_engine(engine.url)
    event.listen(logged, "before_cursor_execute", lambda *told: said.append(told[2]))
    with OrmSession(logged) as session, session.begin():
        session.add(Packing(number=1))
    logged.dispose()
    assert [statement for statement in said if statement.startswith("INSERT") and "ON CONFLICT (job_class" in statement]
