"""For one class and key there is at most one live row, whoever adds it at the same moment; nobody's job is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session as OrmSession

from magik_sa import enqueue
from tests.jobs.shop import Order, Paying, Settling, open_shop
from tests.tools.effects import Effects
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

SERIALIZATION_FAILURE, DEADLOCK = "40001", "40P01"


@pytest.fixture
def shop(database: str) -> Iterator[Engine]:
    """An engine with room for many callers at once."""
    engine = create_engine(database, pool_size=25)
    open_shop(engine)
    yield engine
    engine.dispose()


# ---- two transactions, one key


@contextmanager
def two(engine: Engine, isolation: str) -> Iterator[tuple[OrmSession, OrmSession]]:
    """Two Sessions at this level of isolation."""
    at = engine.execution_options(isolation_level=isolation)
    with OrmSession(at) as one, OrmSession(at) as other:
        yield one, other


def wait_for_a_waiter(dsn: str) -> None:
    """Return when a session of this database waits for another's transaction to end."""
    query = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock' AND wait_event = 'transactionid'"
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        until(lambda: connection.execute(query).fetchone() is not None, what="a session waits")


def add(session: OrmSession, number: int, *, commit: bool) -> Settling:
    """An order, and tenant 7's job."""
    session.add_all([Order(number=number), job := Settling(tenant=7)])
    session.flush()
    if commit:
        session.commit()
    return job


def found(engine: Engine) -> tuple[list[Any], list[int]]:
    """The ids of tenant 7's jobs, and the numbers of the orders."""
    with OrmSession(engine) as session:
        return list(session.scalars(select(Settling.id))), sorted(session.scalars(select(Order.number)))


levels = pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])


@levels
def test_who_waited_for_a_transaction_that_rolled_back_has_its_job(shop: Engine, dsn: str, isolation: str) -> None:
    with two(shop, isolation) as (one, other), ThreadPoolExecutor(1) as pool:
        add(one, 1, commit=False)
        waits = pool.submit(add, other, 2, commit=True)
        wait_for_a_waiter(dsn)
        one.rollback()
        job = waits.result(20)
        assert not job.is_repeat
    assert found(shop) == ([job.id], [2])


def test_who_waited_for_a_transaction_that_committed_has_a_repeat(shop: Engine, dsn: str) -> None:
    with two(shop, "READ COMMITTED") as (one, other), ThreadPoolExecutor(1) as pool:
        first = add(one, 1, commit=False)
        waits = pool.submit(add, other, 2, commit=True)
        wait_for_a_waiter(dsn)
        one.commit()
        assert waits.result(20).repeat_of == first.id
    assert found(shop) == ([first.id], [1, 2])


def test_at_repeatable_read_who_waited_for_a_commit_is_told_to_try_again(shop: Engine, dsn: str) -> None:
    with two(shop, "REPEATABLE READ") as (one, other), ThreadPoolExecutor(1) as pool:
        first = add(one, 1, commit=False)
        waits = pool.submit(add, other, 2, commit=True)
        wait_for_a_waiter(dsn)
        one.commit()
        expect_serialization_failure(waits)
        other.rollback()
        assert add(other, 2, commit=True).repeat_of == first.id
    assert found(shop) == ([first.id], [1, 2])


def test_at_repeatable_read_a_snapshot_older_than_the_live_job_is_told_to_try_again(shop: Engine) -> None:
    with two(shop, "REPEATABLE READ") as (one, other), ThreadPoolExecutor(1) as pool:
        other.execute(text("SELECT 1 FROM magik_jobs"))
        first = add(one, 1, commit=True)
        expect_serialization_failure(pool.submit(add, other, 2, commit=True))
        other.rollback()
        assert add(other, 2, commit=True).repeat_of == first.id
    assert found(shop) == ([first.id], [1, 2])


def expect_serialization_failure(adding: Future[Settling]) -> None:
    """An error that says "try again"; losing the job without one would be the fault."""
    with pytest.raises(OperationalError) as caught:
        adding.result(20)
    assert getattr(caught.value.orig, "sqlstate", None) == SERIALIZATION_FAILURE


# ---- many callers, one key, and a worker that finishes what they add

CALLERS, ROUNDS = 20, 30


@pytest.mark.slow
def test_of_many_callers_at_once_one_has_the_job_and_none_an_error(
    shop: Engine, database: str, dsn: str, effects: Effects
) -> None:
    number = count()
    together = threading.Barrier(CALLERS)

    def call() -> bool:
        with OrmSession(shop) as session:
            session.add_all([Order(number=next(number)), job := Settling(tenant=7)])
            together.wait(20)
            session.commit()
            return not job.is_repeat

    with (
        WorkerProcess(database, "tests.jobs.shop", concurrency=2) as worker,
        ThreadPoolExecutor(CALLERS) as pool,
        watching(dsn) as seen,
    ):
        worker.wait_ready()
        for _ in range(ROUNDS):
            before = effects.count()
            new = [future.result(30) for future in [pool.submit(call) for _ in range(CALLERS)]]
            until(lambda: found(shop)[0] == [], what="the round's jobs are done")
            assert 1 <= sum(new) == effects.count() - before
    assert max(seen) == 1
    assert found(shop)[1] == list(range(CALLERS * ROUNDS))
    assert effects.repeats() == []


@contextmanager
def watching(dsn: str) -> Iterator[set[int]]:
    """How many live rows the key was seen to have, looked at all the while."""
    seen, over = {0}, threading.Event()

    def watch() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not over.is_set():
                row = connection.execute(
                    "SELECT count(*) FROM magik_jobs WHERE finished_at IS NULL AND expired_at IS NULL"
                ).fetchone()
                seen.add(row[0] if row else 0)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


# ---- two transactions, the same keys in opposite order

KEYS = 300


def collide(engine: Engine, start: int) -> list[BaseException]:
    """Two transactions that add the same keys in opposite order at the same moment; what they raised."""
    together = threading.Barrier(2)
    half = range(start, start + KEYS // 2)

    def call(reverse: bool) -> None:
        jobs: list[Settling | Paying] = [cls(tenant=tenant) for tenant in half for cls in (Settling, Paying)]
        with OrmSession(engine) as session:
            session.add_all(jobs[::-1] if reverse else jobs)
            session.add(Order(number=start + reverse))
            together.wait(20)
            session.commit()

    with ThreadPoolExecutor(2) as pool:
        raised = [future.exception(60) for future in [pool.submit(call, reverse) for reverse in (False, True)]]
    return [error for error in raised if error is not None]


def test_transactions_that_add_the_same_keys_in_opposite_order_do_not_deadlock(shop: Engine) -> None:
    rounds = 15
    for each in range(rounds):
        assert collide(shop, each * KEYS) == []
    with OrmSession(shop) as session:
        assert session.scalar(text("SELECT count(*) FROM magik_jobs")) == rounds * KEYS
        assert session.scalar(text("SELECT count(*) FROM orders")) == rounds * 2


def test_transactions_that_add_keys_of_one_set_in_any_order_do_not_deadlock(shop: Engine) -> None:
    """Three at once, each its own shuffled part of the keys, some of them twice."""
    random = Random(7)
    together = threading.Barrier(3)

    def call(tenants: list[int]) -> None:
        with OrmSession(shop) as session:
            session.add_all([Settling(tenant=tenant) for tenant in tenants])
            together.wait(20)
            session.commit()

    with ThreadPoolExecutor(3) as pool:
        for start in range(0, 1000, 100):
            parts = [random.choices(range(start, start + 100), k=80) for _ in range(3)]
            for future in [pool.submit(call, part) for part in parts]:
                future.result(60)
    with OrmSession(shop) as session:
        assert session.scalar(text("SELECT count(*) - count(DISTINCT key_digest) FROM magik_jobs")) == 0


def test_control_without_the_order_they_deadlock(shop: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue, "_order", list)
    raised = deadlocked(lambda start: collide(shop, start))
    assert [getattr(getattr(error, "orig", None), "sqlstate", None) for error in raised] == [DEADLOCK]


def deadlocked(collide: Callable[[int], list[BaseException]]) -> list[BaseException]:
    """What the first round raised that raised anything."""
    return next(filter(None, (collide(each * KEYS) for each in range(15))), [])
