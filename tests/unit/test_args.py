"""Arguments: checked when a job is built or an attribute is set, kept as JSON, never shown if sensitive."""

from __future__ import annotations

import enum
import pickle
import traceback
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import pytest
from pydantic import AfterValidator, BaseModel, Field, SecretStr
from sqlalchemy.orm import Mapped, Session

from magik_sa import EnqueueError, Job, arg
from magik_sa.storable import MAX_ARGS_BYTES


class Colour(enum.Enum):
    RED = "red"


class Point(BaseModel):
    x: int
    labels: list[str] = []


@dataclass
class Range:
    low: int
    high: int


Euros = NewType("Euros", int)
SECRET = "hunter2-is-the-password"


def must_be_short(value: str) -> str:
    if len(value) > 8:
        raise ValueError(f"{value} is too long")
    return value


class Everything(Job, policy="system"):
    text: Mapped[str] = arg(default="")
    whole: Mapped[int] = arg(default=0)
    real: Mapped[float] = arg(default=0.0)
    yes: Mapped[bool] = arg(default=False)
    exact: Mapped[Decimal] = arg(default=Decimal("1.00"))
    uuid: Mapped[UUID] = arg(default=UUID(int=7))
    day: Mapped[date] = arg(default=date(2024, 2, 29))
    moment: Mapped[datetime] = arg(default=datetime(2024, 1, 1, tzinfo=UTC))
    clock: Mapped[time] = arg(default=time(3, 4))
    span: Mapped[timedelta] = arg(default=timedelta(seconds=90))
    colour: Mapped[Colour] = arg(default=Colour.RED)
    choice: Mapped[Literal["a", "b"]] = arg(default="a")
    positive: Mapped[Annotated[int, Field(gt=0)]] = arg(default=1)
    euros: Mapped[Euros] = arg(default=Euros(3))
    maybe: Mapped[UUID | None] = arg(default=None)
    several: Mapped[list[UUID]] = arg(default_factory=list)
    table: Mapped[dict[str, Any]] = arg(default_factory=dict)
    group: Mapped[set[str]] = arg(default_factory=set)
    pair: Mapped[tuple[int, str]] = arg(default=(1, "x"))
    point: Mapped[Point] = arg(default=Point(x=1))
    range: Mapped[Range] = arg(default=Range(1, 2))
    anything: Mapped[Any] = arg(default=None)
    quoted: Mapped[list[Point]] = arg(default_factory=list)
    secret: Mapped[Annotated[str, AfterValidator(must_be_short)]] = arg(default="", sensitive=True)
    secrets: Mapped[dict[str, int]] = arg(default_factory=dict, sensitive=True)

    def perform(self, session: Session) -> None: ...


class Bare(Job, policy="system"):
    tenant_id: Mapped[UUID]
    name: Mapped[str]

    def perform(self, session: Session) -> None: ...


def refusal(**given: Any) -> EnqueueError:
    with pytest.raises(EnqueueError) as refused:
        Everything(**given)
    assert refused.value.code == "MAGIK_ARGS_INVALID"
    return refused.value


def test_defaults_are_written_when_the_job_is_built() -> None:
    job = Everything()
    assert set(job.args) == set(Everything.__magik__.arguments)
    assert (job.exact, job.args["exact"]) == (Decimal("1.00"), "1.00")


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("text", "ß漢😀\\u0000", "ß漢😀\\u0000"),
        ("whole", 2**63 - 1, 2**63 - 1),
        ("real", 1e308, 1e308),
        ("exact", Decimal("0.10"), "0.10"),
        ("moment", datetime(2024, 1, 1, 5, 30, tzinfo=UTC), "2024-01-01T05:30:00Z"),
        ("span", timedelta(milliseconds=1), "PT0.001S"),
        ("colour", Colour.RED, "red"),
        ("several", [UUID(int=1)], [str(UUID(int=1))]),
        ("group", {"b", "a"}, ["a", "b"]),
        ("pair", (2, "y"), [2, "y"]),
        ("point", Point(x=2, labels=["l"]), {"x": 2, "labels": ["l"]}),
        ("range", Range(3, 4), {"low": 3, "high": 4}),
        ("anything", {"a": [1, None, "x"]}, {"a": [1, None, "x"]}),
        ("quoted", [Point(x=1)], [{"x": 1, "labels": []}]),
    ],
)
def test_a_value_is_shown_as_given_and_kept_as_json(name: str, value: Any, stored: Any) -> None:
    job = Everything(**{name: value})
    assert (getattr(job, name), job.args[name]) == (value, stored)
    argument = Everything.__magik__.arguments[name]
    assert argument.read(stored) == value


def test_what_pydantic_can_read_becomes_the_type() -> None:
    given: Any = str(UUID(int=9))
    assert Everything(uuid=given).uuid == UUID(int=9)


def test_a_bare_mapped_is_a_required_argument() -> None:
    assert Bare(tenant_id=UUID(int=1), name="x").name == "x"
    with pytest.raises(EnqueueError, match="tenant_id: is missing"):
        Bare(name="x")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("positive", 0),
        ("whole", "seven"),
        ("whole", 2**63),
        ("uuid", "no uuid"),
        ("choice", "c"),
        ("text", "a\0b"),
        ("text", "\ud800"),
        ("table", {"k\0": 1}),
        ("table", {"k": ["\udfff"]}),
        ("table", {"k": float("nan")}),
        ("table", {"k": object()}),
        ("table", {"k": (1, 2)}),
        ("real", float("inf")),
        ("real", float("nan")),
        ("exact", Decimal("NaN")),
        ("moment", datetime(2024, 1, 1)),  # noqa: DTZ001
        ("anything", SecretStr("x")),
        ("anything", [10**5000]),
        ("anything", b"\xff"),
        pytest.param("text", "x" * MAX_ARGS_BYTES, id="large"),
        ("no_such_argument", 1),
        ("args", {}),
        ("version", 3),
        ("id", UUID(int=1)),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name_when_the_job_is_built(name: str, value: Any) -> None:
    assert refusal(**{name: value}).field == name


def test_a_refused_attribute_leaves_the_job_as_it_was() -> None:
    job = Everything(positive=3)
    with pytest.raises(EnqueueError, match="positive"):
        job.positive = -1
    assert (job.positive, job.args["positive"]) == (3, 3)


def test_too_deep_nesting_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    refusal(anything=deep)


def test_the_limit_is_counted_in_bytes() -> None:
    room = MAX_ARGS_BYTES - 2_000
    assert Everything(text="x" * room).text
    assert Everything(text="😀" * (room // 4)).text
    assert refusal(text="😀" * room).field == "text"


def test_an_argument_can_be_set_and_is_checked_again() -> None:
    job = Everything()
    job.uuid = UUID(int=5)
    assert job.args["uuid"] == str(UUID(int=5))


def test_each_job_has_a_default_of_its_own() -> None:
    one, other = Everything(), Everything()
    one.point.labels.append("changed")
    one.several.append(UUID(int=1))
    assert (other.point.labels, other.several) == ([], [])


def test_a_sensitive_value_is_in_no_repr_and_no_error() -> None:
    job = Everything(secret="quiet", secrets={"quiet": 1})
    assert "quiet" not in repr(job)
    assert "quiet" not in repr(job.args)
    for given in ({"secret": SECRET}, {"secrets": {SECRET: "x"}}, {"secret": SECRET + "\0"}):
        error = refusal(**given)
        told = "".join(traceback.format_exception(error)) + repr(error.__context__) + repr(error.__cause__)
        assert SECRET not in told.replace(repr(given), "")
        assert error.field in given


def test_an_error_never_quotes_what_pydantic_was_given() -> None:
    assert "no uuid" not in str(refusal(uuid="no uuid"))


class Typed(Job, policy="system", name="args.typed"):
    count: Mapped[int] = arg(default=1)
    tenant: Mapped[UUID | None] = arg(default=None)
    above: Mapped[Annotated[int, Field(gt=3)]] = arg(default=4)
    numbers: Mapped[list[int]] = arg(default_factory=list)
    hidden: Mapped[int] = arg(default=1, sensitive=True)

    def perform(self, session: Session) -> None: ...


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("count", "many", "has to be of type int: Input should be a valid integer, "),
        ("count", 1.5, "has to be of type int: Input should be a valid integer, "),
        ("tenant", "7", "has to be of type UUID | None: Input should be a valid UUID, "),
        ("above", "x", "has to be of type int: Input should be a valid integer, "),
        ("above", 3, "Input should be greater than 3."),
        ("numbers", [1, "x"], "has to be of type list[int]: 1: Input should be a valid integer, "),
        ("hidden", "s3cret", "refused (int_parsing)."),
    ],
)
def test_a_value_of_another_type_is_told_the_type_as_the_class_has_it(name: str, value: Any, said: str) -> None:
    with pytest.raises(EnqueueError, match="MAGIK_ARGS_INVALID") as built:
        Typed(**{name: value})
    with pytest.raises(EnqueueError, match="MAGIK_ARGS_INVALID") as changed:
        setattr(Typed(), name, value)
    assert built.value.what.startswith(f"{name}: {said}")
    assert changed.value.what == built.value.what


def test_a_refusal_names_the_first_faults_of_many() -> None:
    class Many(Job, policy="system"):
        numbers: Mapped[list[int]] = arg()

        def perform(self, session: Session) -> None: ...

    given: Any = ["x"] * 100_000
    with pytest.raises(EnqueueError) as refused:
        Many(numbers=given)
    assert "0: Input should be a valid integer" in refused.value.what
    assert refused.value.what.endswith("and 99,995 more.")
    assert len(refused.value.what) < 1_000


def test_repr_shows_class_id_queue_and_arguments() -> None:
    job = Bare(tenant_id=UUID(int=1), name="x" * 500, queue="q")
    assert repr(job).startswith(f"<Bare {job.id} queue='q' tenant_id='00000000-")
    assert len(repr(job)) < 300


def test_a_job_can_be_pickled() -> None:
    job = Everything(several=[UUID(int=1)], secret="quiet")
    again = pickle.loads(pickle.dumps(job))
    assert (again.id, again.several, again.args) == (job.id, job.several, job.args)
    assert "quiet" not in repr(again.args)


def test_jobs_cannot_be_built_of_what_has_none() -> None:
    from magik_sa import UnknownJob

    for cls in (Job, UnknownJob):
        with pytest.raises(EnqueueError, match="has no jobs of its own"):
            cls()
