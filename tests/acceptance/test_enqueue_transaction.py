"""A job exists if, and only if, the transaction and the savepoint that added it committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Engine, delete, func, inspect, select, text
from sqlalchemy.exc import IntegrityError, InvalidRequestError, OperationalError
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import sessionmaker

from tests.jobs.shop import Order, Packing, Settling, open_shop
from tests.tools.effects import Effects
from tests.tools.waiting import never, until
from tests.tools.workers import WorkerProcess

Sessions = sessionmaker[OrmSession]


@pytest.fixture
def sessions(engine: Engine) -> Sessions:
    """The application's Session factory."""
    return sessionmaker(engine)


@pytest.fixture
def worker(database: str, engine: Engine, effects: Effects) -> Iterator[WorkerProcess]:
    """A worker of the shop's jobs that idles, and looks for work each second."""
    open_shop(engine)
    with WorkerProcess(database, "tests.jobs.shop", concurrency=2, poll_interval="1s") as worker:
        yield worker.wait_ready()


class Boom(Exception):
    """Something of the application's went wrong."""


def rolled_back(sessions: Sessions, dsn: str) -> UUID:
    """(a) session.rollback()."""
    with sessions() as session:
        session.add_all([Order(number=1), job := Packing(number=1)])
        session.flush()
        session.rollback()
        return job_id(job)


def left_by_an_exception(sessions: Sessions, dsn: str) -> UUID:
    """(b) An exception out of session.begin()."""
    job = Packing(number=1)
    with pytest.raises(Boom), sessions.begin() as session:
        session.add_all([Order(number=1), job])
        session.flush()
        raise Boom
    return job_id(job)


def cut_before_commit(sessions: Sessions, dsn: str) -> UUID:
    """(c) The connection dies before COMMIT."""
    with sessions() as session:
        session.add_all([Order(number=1), job := Packing(number=1)])
        session.flush()
        pid = session.scalar(text("SELECT pg_backend_pid()"))
        with psycopg.connect(dsn, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        with pytest.raises(OperationalError):
            session.commit()
        session.rollback()
        return job_id(job)


def refused_at_commit(sessions: Sessions, dsn: str) -> UUID:
    """(d) COMMIT fails on a deferred constraint."""
    with sessions() as session:
        session.add_all([Order(number=1), Order(number=1), job := Packing(number=1)])
        session.flush()
        with pytest.raises(IntegrityError, match="orders_number_key"):
            session.commit()
        session.rollback()
        return job_id(job)


def job_id(job: Packing) -> UUID:
    """The job's id, which it has from its construction; a job that was rolled back is nobody's row."""
    assert not inspect(job).persistent
    return job.id


def counts(sessions: Sessions) -> tuple[int, int]:
    """How many orders there are, and how many rows of jobs."""
    with sessions() as session:
        orders = session.scalar(select(func.count()).select_from(Order))
        jobs = session.scalar(text("SELECT count(*) FROM magik_jobs"))
        return orders or 0, jobs or 0


@pytest.mark.usefixtures("worker")
def test_a_job_of_a_transaction_that_did_not_commit_never_was(sessions: Sessions, dsn: str, effects: Effects) -> None:
    ways: list[Callable[[Sessions, str], UUID]] = [
        rolled_back,
        left_by_an_exception,
        cut_before_commit,
        refused_at_commit,
    ]
    ids = [way(sessions, dsn) for way in ways]
    assert counts(sessions) == (0, 0)

    with sessions.begin() as session:
        session.add_all([Order(number=1), job := Packing(number=2)])
    until(lambda: effects.finished("Packing"), what="the job that was committed runs")
    assert [effect.job_id for effect in effects.rows()] == [job.id]
    never(lambda: effects.count() != 1, during=1.5, what="a job that never was runs")
    until(lambda: counts(sessions) == (1, 0), what="the order is there and its job is done")
    assert job.id not in ids


@pytest.mark.usefixtures("worker")
def test_control_a_job_added_on_a_transaction_of_its_own_outlives_the_rollback(
    sessions: Sessions, effects: Effects
) -> None:
    with sessions() as session, sessions() as other:
        session.add(Order(number=1))
        session.flush()
        other.add(job := Packing(number=1))
        other.commit()
        session.rollback()
    until(lambda: effects.starts(job.id), what="the job runs although the order was rolled back")
    assert counts(sessions)[0] == 0


@pytest.mark.usefixtures("worker")
def test_a_key_is_free_again_when_the_transaction_around_its_savepoint_rolled_back(
    sessions: Sessions, effects: Effects
) -> None:
    ghost = Settling(tenant=7)
    with pytest.raises(Boom), sessions.begin() as session:
        with session.begin_nested():
            session.add(ghost)
        assert not ghost.is_repeat
        raise Boom
    assert counts(sessions) == (0, 0)

    with sessions.begin() as session:
        session.add(job := Settling(tenant=7))
    assert not job.is_repeat
    until(lambda: effects.finished("Settling"), what="the second add runs")
    assert [effect.job_id for effect in effects.rows()] == [job.id]


@pytest.mark.usefixtures("worker")
def test_a_job_of_a_savepoint_that_rolled_back_does_not_follow_the_outer_commit(
    sessions: Sessions, effects: Effects
) -> None:
    with sessions.begin() as session:
        session.add(a := Packing(number=1))
        with pytest.raises(Boom), session.begin_nested():
            session.add(b := Packing(number=2))
            session.flush()
            raise Boom
        assert b not in session
        assert session.get(Packing, b.id) is None
        session.add(c := Packing(number=3))
    until(lambda: effects.finished("Packing") == 2, what="both jobs that were committed run")
    never(lambda: effects.count() != 2, during=1.5, what="the job of the savepoint runs")
    assert {effect.job_id for effect in effects.rows()} == {a.id, c.id}
    assert inspect(b).transient


def test_a_job_whose_savepoint_rolled_back_before_any_flush_is_gone_too(sessions: Sessions) -> None:
    with sessions() as session:
        with pytest.raises(Boom), session.begin_nested():
            session.add(job := Packing(number=1))
            raise Boom
        session.commit()
        assert session.scalar(text("SELECT count(*) FROM magik_jobs")) == 0
        with pytest.raises(InvalidRequestError):
            session.refresh(job)


def test_a_job_that_was_cancelled_in_the_transaction_that_added_it_never_was(sessions: Sessions) -> None:
    with sessions() as session:
        session.add_all([Packing(number=1), job := Packing(number=2), Settling(tenant=1)])
        session.flush()
        session.execute(delete(Packing).where(Packing.number == 1))
        session.delete(job)
        session.commit()
        assert session.scalars(text("SELECT job_class FROM magik_jobs")).all() == ["Settling"]
