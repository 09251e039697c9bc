"""once(): True for the first, False for every other, decided by the transaction that made the effect."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, Session

from magik_sa import EnqueueError, Job, arg, once
from tests.tools.waiting import until

T = UUID(int=7)


class Capture(Job, policy="system", name="capture"):
    """A job with a key."""

    idempotent_by = ("tenant_id", "amount")
    tenant_id: Mapped[UUID] = arg()
    amount: Mapped[Decimal] = arg()
    tags: Mapped[list[str]] = arg(default_factory=list)

    def perform(self, session: Session) -> None: ...


class Keyless(Job, policy="system"):
    """A job without a key."""

    def perform(self, session: Session) -> None: ...


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


def effects(engine: Engine) -> list[tuple[str, int]]:
    """Scopes, and how many keys in each."""
    with engine.connect() as connection:
        query = "SELECT scope, count(*) FROM magik_effects GROUP BY 1 ORDER BY 1"
        return [(scope, count) for scope, count in connection.execute(text(query))]


def test_the_first_is_the_first_and_nobody_else(session: Session, engine: Engine) -> None:
    assert once(session, T, scope="mail")
    assert not once(session, T, scope="mail")
    session.commit()
    assert not once(session, T, scope="mail")
    assert once(session, T, scope="fax")
    assert once(session, UUID(int=8), scope="mail")
    session.commit()
    assert effects(engine) == [("fax", 1), ("mail", 2)]


def test_what_was_rolled_back_has_not_happened(session: Session, engine: Engine) -> None:
    assert once(session, T, scope="mail")
    session.rollback()
    with pytest.raises(ZeroDivisionError), session.begin_nested():
        assert once(session, T, scope="mail")
        raise ZeroDivisionError
    assert once(session, T, scope="mail")
    session.commit()
    assert effects(engine) == [("mail", 1)]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_the_second_of_two_at_once_waits_for_the_first(session: Session, engine: Engine, ends: str) -> None:
    pids: list[int] = []

    def second() -> bool:
        with Session(engine) as other, other.begin():
            pids.append(other.scalars(select(func.pg_backend_pid())).one())
            return once(other, T, scope="mail")

    def waits() -> bool:
        with engine.connect() as connection:
            query = text("SELECT wait_event_type FROM pg_stat_activity WHERE pid = :pid")
            return bool(pids) and connection.scalar(query, {"pid": pids[0]}) == "Lock"

    assert once(session, T, scope="mail")
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(second)
        until(waits, what="the second waits")
        assert not answer.done()
        getattr(session, ends)()
        assert answer.result(10) is (ends == "rollback")
    assert effects(engine) == [("mail", 1)]


def test_of_many_at_once_one_is_the_first(engine: Engine) -> None:
    together = threading.Barrier(8)

    def asked(number: int) -> bool:
        with Session(engine) as session, session.begin():
            session.execute(text("SELECT 1"))
            together.wait(30)
            return once(session, number, scope="mail")

    with ThreadPoolExecutor(8) as threads:
        for number in range(10):
            assert sorted(threads.map(asked, [number] * 8)) == [False] * 7 + [True]


# ---- the key of a job


def test_a_job_s_key_is_its_own_under_its_stored_name(session: Session, engine: Engine) -> None:
    assert once(session, Capture(tenant_id=T, amount=Decimal("1.0")))
    assert not once(session, Capture(tenant_id=T, amount=Decimal("1.00"), tags=["other"]))
    assert once(session, Capture(tenant_id=T, amount=Decimal("1.01")))
    assert once(session, Capture(tenant_id=T, amount=Decimal(1)), scope="fee")
    session.commit()
    assert effects(engine) == [("capture", 2), ("fee", 1)]


def test_a_loaded_job_has_the_key_of_its_row(session: Session) -> None:
    job = Capture(tenant_id=T, amount=Decimal(1))
    session.add(job)
    session.commit()
    session.expunge_all()
    assert once(session, session.get_one(Capture, job.id))
    assert not once(session, Capture(tenant_id=T, amount=Decimal(1)))


def test_a_row_that_is_older_than_its_key_has_the_key_that_it_would_have(session: Session) -> None:
    job = Capture(tenant_id=T, amount=Decimal(1))
    session.add(job)
    session.commit()
    session.execute(text("UPDATE magik_jobs SET key_digest = NULL"))
    session.expunge_all()
    assert once(session, session.get_one(Capture, job.id))
    assert not once(session, Capture(tenant_id=T, amount=Decimal(1)))


def test_a_job_without_a_key_is_refused(session: Session, engine: Engine) -> None:
    with pytest.raises(EnqueueError, match="MAGIK_ONCE_WITHOUT_KEY: Keyless has no idempotent_by"):
        once(session, Keyless())
    assert not session.in_transaction()


# ---- keys of one's own


SAME: list[tuple[Any, Any]] = [
    (T, str(T)),
    ((1, "a"), [1, "a"]),
    ({"a": 1, "b": [T]}, {"b": [str(T)], "a": 1}),
    (1.0, 1),
    (-0.0, 0),
    ("é", "\u00e9"),
]
DIFFERENT: list[tuple[Any, Any]] = [
    (1, "1"),
    (1, True),
    (0, False),
    ([1, 2], [2, 1]),
    ([1, [2]], [[1], 2]),
    ({"a": 1}, {"a": "1"}),
    ({"a": None}, {}),
    ("", []),
    (1.5, 1),
    ("a", "A"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_is_one_key(session: Session, one: Any, other: Any) -> None:
    assert (once(session, one, scope="s"), once(session, other, scope="s")) == (True, False)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_are_two_keys(session: Session, one: Any, other: Any) -> None:
    assert (once(session, one, scope="s"), once(session, other, scope="s")) == (True, True)


def nested(depth: int) -> Any:
    key: Any = 1
    for _ in range(depth):
        key = [key]
    return key


WRONG: dict[str, tuple[Any, Any, str]] = {
    "none": (None, "s", "key: is None"),
    "a class": (Capture, "s", "key: is not JSON"),
    "a decimal": (Decimal(1), "s", "key: is not JSON"),
    "a time": ([datetime(2031, 1, 1, tzinfo=UTC)], "s", "key: is not JSON"),
    "bytes": (b"a", "s", "key: is not JSON"),
    "a set": ({1}, "s", "key: is not JSON"),
    "not a number": (float("nan"), "s", "key: is not JSON"),
    "infinity": (float("inf"), "s", "key: is not JSON"),
    "a NUL": ("a\0", "s", "key: holds a NUL"),
    "a surrogate": ("\ud800", "s", "key: holds a lone surrogate"),
    "a number as a name": ({1: 2}, "s", "key: has a name that is no text"),
    "deep": (nested(5_000), "s", "key: is nested too deeply"),
    "no scope": (1, None, "scope: is missing"),
    "a long scope": (1, "é" * 128, "scope: has to have 1 to 255 bytes"),
    "an empty scope": (1, "", "scope: has to have 1 to 255 bytes"),
    "a scope with a NUL": (1, "a\0", "scope: holds a NUL"),
    "a class as scope": (1, Capture, "scope: is not text"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_a_key_is_refused_before_any_sql(session: Session, wrong: str) -> None:
    key, scope, told = WRONG[wrong]
    with pytest.raises(EnqueueError, match=f"MAGIK_ARGS_INVALID: {told}") as refused:
        once(session, key, scope=scope)
    assert refused.value.field == told.split(":")[0]
    assert not session.in_transaction()


def test_a_session_that_has_to_be_awaited_is_refused_with_the_form_that_works() -> None:
    other: Any = AsyncSession()
    with pytest.raises(EnqueueError, match="MAGIK_SYNC_SESSION_REQUIRED.*run_sync"):
        once(other, 1, scope="s")
