"""What cannot become a job is refused before any SQL, with a code and the field's name, and the transaction goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import count
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, insert, select, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session as OrmSession

from magik_sa import EnqueueError, Job, context
from tests.jobs.intake import Intake
from tests.jobs.shop import Order, Settling, open_shop
from tests.tools.server import Server

numbers = count(1)


@pytest.fixture(scope="module")
def shop(server: Server, template: str) -> Iterator[Engine]:
    """One database for all of these: none of them may leave anything in it but orders."""
    with server.created(template) as name:
        engine = create_engine(server.url(name))
        open_shop(engine)
        yield engine
        engine.dispose()


@contextmanager
def refused(shop: Engine, code: str, field: str | None) -> Iterator[OrmSession]:
    """In the block an error of this code and field is raised; what the transaction did before it is committed after."""
    number = next(numbers)
    with OrmSession(shop) as session:
        session.add(Order(number=number))
        session.flush()
        with pytest.raises(EnqueueError) as caught:
            yield session
        assert (caught.value.code, caught.value.field) == (code, field)
        for job in [*session.new, *session.dirty]:
            session.expunge(job)
        session.commit()
        assert session.scalar(select(Order.id).where(Order.number == number)) is not None
        assert session.scalar(text("SELECT count(*) FROM magik_jobs")) == 0
        assert str(caught.value).startswith(f"{code}: ")
        assert "\n" not in str(caught.value)


def nested(levels: int) -> Any:
    """A list in a list in a list …."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


NUL, SURROGATE = "a\0b", "a\ud800b"

ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    ("number", {"number": "many"}),
    ("number", {"number": 1.5}),
    ("number", {"number": None}),
    ("number", {"number": -1}),
    ("number", {"number": 2**63}),
    ("number", {}),
    ("colour", {"number": 1, "colour": "red"}),
    ("id", {"number": 1, "id": 1}),
    ("args", {"number": 1, "args": {}}),
    ("version", {"number": 1, "version": 7}),
    ("words", {"number": 1, "words": 5}),
    ("words", {"number": 1, "words": NUL}),
    ("words", {"number": 1, "words": SURROGATE}),
    ("words", {"number": 1, "words": "x" * 2**20}),
    ("words", {"number": 1, "words": "é" * 2**17}),
    ("secret", {"number": 1, "secret": NUL}),
    ("data", {"number": 1, "data": {NUL: 1}}),
    ("data", {"number": 1, "data": {SURROGATE: 1}}),
    ("data", {"number": 1, "data": {"a": [{"b": NUL}]}}),
    ("data", {"number": 1, "data": {"a": [{"b": SURROGATE}]}}),
    ("data", {"number": 1, "data": {"a": [{"b": math.nan}]}}),
    ("data", {"number": 1, "data": {"a": {1, 2}}}),
    ("data", {"number": 1, "data": {"a": (1, 2)}}),
    ("data", {"number": 1, "data": {"a": {1: "not a name in JSON"}}}),
    ("data", {"number": 1, "data": []}),
    ("ratio", {"number": 1, "ratio": math.nan}),
    ("ratio", {"number": 1, "ratio": -math.inf}),
    ("amount", {"number": 1, "amount": Decimal("NaN")}),
    ("amount", {"number": 1, "amount": Decimal("sNaN")}),
    ("amount", {"number": 1, "amount": Decimal("Infinity")}),
    ("at", {"number": 1, "at": datetime(2030, 1, 1)}),  # noqa: DTZ001 - a naive one
    ("anything", {"number": 1, "anything": object()}),
    ("anything", {"number": 1, "anything": b"bytes"}),
    ("anything", {"number": 1, "anything": 10**5000}),
    *(("anything", {"number": 1, "anything": nested(levels)}) for levels in (250, 253, 254, 255, 10_000)),
]
OPTIONS: list[tuple[str, Any]] = [
    ("run_at", datetime(2030, 1, 1)),  # noqa: DTZ001 - a naive one
    ("run_at", date(2030, 1, 1)),
    ("run_at", "2030-01-01T00:00:00Z"),
    ("run_at", 1893456000),
    ("run_at", "now()"),
    ("run_at", datetime.max.replace(tzinfo=UTC)),
    ("run_at", datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))),
    ("delay", 10),
    ("delay", "10"),
    ("delay", "soon"),
    ("delay", "5m1h"),
    ("delay", "-5s"),
    ("delay", "1y"),
    ("delay", "99999d"),
    ("delay", timedelta(seconds=-1)),
    ("priority", 40000),
    ("priority", -40000),
    ("priority", "5"),
    ("priority", 1.5),
    ("priority", True),
    ("queue", "q" * 500),
    ("queue", "é" * 128),
    ("queue", ""),
    ("queue", NUL),
    ("queue", SURROGATE),
    ("queue", 5),
]


@pytest.mark.parametrize(("field", "given"), ARGUMENTS, ids=[field for field, _ in ARGUMENTS])
def test_an_argument_that_does_not_fit_is_refused_by_its_name(shop: Engine, field: str, given: dict[str, Any]) -> None:
    with refused(shop, "MAGIK_ARGS_INVALID", field) as session:
        session.add(Intake(**given))


@pytest.mark.parametrize(("field", "value"), OPTIONS, ids=[field for field, _ in OPTIONS])
def test_an_option_that_does_not_fit_is_refused_by_its_name(shop: Engine, field: str, value: Any) -> None:
    with refused(shop, "MAGIK_ARGS_INVALID", field) as session:
        session.add(Intake(number=1, **{field: value}))


def test_run_at_and_delay_together_are_refused(shop: Engine) -> None:
    with refused(shop, "MAGIK_ARGS_INVALID", "delay") as session:
        session.add(Intake(number=1, run_at=datetime(2030, 1, 1, tzinfo=UTC), delay="5s"))


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, v in OPTIONS if f != "delay"])
def test_an_attribute_that_is_set_is_checked_like_one_that_is_given(shop: Engine, field: str, value: Any) -> None:
    with refused(shop, "MAGIK_ARGS_INVALID", field) as session:
        session.add(job := Intake(number=1))
        setattr(job, field, value)


CHANGES: dict[str, tuple[str, Callable[[Intake], object]]] = {
    "an argument is set": ("words", lambda job: setattr(job, "words", NUL)),
    "a value is put into a dict": ("data", lambda job: job.data.update(k=NUL)),
    "a value is put deeper": ("data", lambda job: job.data["list"].append(math.nan)),
    "a dict grows too large": ("data", lambda job: job.data.update(k="x" * 2**20)),
    "all arguments are replaced": ("number", lambda job: setattr(job, "args", {"number": "many"})),
    "an argument is taken away": ("number", lambda job: setattr(job, "args", {})),
}


@pytest.mark.parametrize(("field", "change"), CHANGES.values(), ids=CHANGES)
def test_what_is_changed_before_the_flush_is_checked_too(
    shop: Engine, field: str, change: Callable[[Intake], object]
) -> None:
    with refused(shop, "MAGIK_ARGS_INVALID", field) as session:
        session.add(job := Intake(number=1, data={"list": []}))
        change(job)
        session.flush()


def test_a_refused_value_leaves_the_job_as_it_was(shop: Engine) -> None:
    job = Intake(number=1, words="good", priority=5)
    with refused(shop, "MAGIK_ARGS_INVALID", "words"):
        job.words = NUL
    with refused(shop, "MAGIK_ARGS_INVALID", "priority"):
        job.priority = 40000
    assert (job.words, job.priority, job.args["words"]) == ("good", 5, "good")


def test_one_bad_job_among_good_ones_keeps_all_of_them_out(shop: Engine) -> None:
    few: list[Any] = [1, 2, "three", 4]
    with refused(shop, "MAGIK_ARGS_INVALID", "number") as session:
        session.add_all(Intake(number=number) for number in few)


CONTEXTS: list[Any] = [{"actor": NUL}, {"actor": object()}, {"actor": "x" * 2**20}, {"actor": ("a", "tuple")}]


@pytest.mark.parametrize("carried", CONTEXTS, ids=["NUL", "an object", "1 MiB", "a tuple"])
def test_a_context_that_cannot_travel_is_refused(shop: Engine, carried: Any) -> None:
    token = context.set(carried)
    try:
        with refused(shop, "MAGIK_ARGS_INVALID", "context") as session:
            session.add(Intake(number=1))
    finally:
        context.reset(token)


SECRETS: list[Any] = ["hunter2\0", "hunter2\ud800", "hunter2" * 2**17, ["hunter2"]]


def test_the_value_of_a_sensitive_argument_is_in_no_error(shop: Engine) -> None:
    for secret in SECRETS:
        with pytest.raises(EnqueueError) as caught:
            Intake(number=1, secret=secret)
        assert "hunter2" not in f"{caught.value!r} {caught.value} {caught.value.__cause__} {caught.value.__context__}"


INSERTS: dict[str, Callable[[OrmSession], object]] = {
    "insert(Settling)": lambda session: session.execute(insert(Settling), [{"priority": 1}]),
    "insert(Job)": lambda session: session.execute(insert(Job).values(job_class="Settling")),
    "the dialect's": lambda session: session.execute(postgresql.insert(Settling).values(args={"tenant": 1})),
    "returning": lambda session: session.scalars(insert(Settling).returning(Settling), [{"priority": 1}]),
}


@pytest.mark.parametrize("way", INSERTS.values(), ids=INSERTS)
def test_an_insert_that_goes_round_the_checks_is_refused(shop: Engine, way: Callable[[OrmSession], object]) -> None:
    with refused(shop, "MAGIK_USE_BULK_ENQUEUE", None) as session:
        way(session)


def test_a_bulk_insert_of_mappings_is_refused(shop: Engine) -> None:
    with OrmSession(shop) as session:
        with pytest.raises(EnqueueError, match="MAGIK_USE_BULK_ENQUEUE"):
            session.bulk_insert_mappings(Settling, [{"args": {"tenant": 1}}])
        session.rollback()
        with pytest.raises(
            (EnqueueError, InvalidRequestError)
        ):  # SQLAlchemy 2.1 says itself that it knows columns only
            session.bulk_insert_mappings(Settling, [{"tenant": 1}])
        session.rollback()
        assert session.scalar(text("SELECT count(*) FROM magik_jobs")) == 0


def test_the_largest_that_is_allowed_is_allowed(shop: Engine) -> None:
    moments = [datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)]
    with OrmSession(shop) as session:
        session.add(Intake(number=2**63 - 1, words="x" * 261_000, priority=32767, queue="é" * 127, run_at=moments[0]))
        session.add(Intake(number=0, words="\u2028\x01'\"\\", priority=-32768, queue="q" * 255, run_at=moments[1]))
        session.flush()
        session.expire_all()
        jobs = session.scalars(select(Intake).order_by(Intake.run_at)).all()
        assert [(job.number, len(job.words), job.priority, len(job.queue)) for job in jobs] == [
            (2**63 - 1, 261_000, 32767, 127),
            (0, 5, -32768, 255),
        ]
        assert [job.run_at for job in jobs] == moments
        session.rollback()
        assert session.scalar(select(func.count()).select_from(Job)) == 0
