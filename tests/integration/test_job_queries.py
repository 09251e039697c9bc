"""Jobs are rows: arguments are typed SQL expressions on the class."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel
from sqlalchemy import Engine, create_engine, delete, select, text, update
from sqlalchemy.orm import Mapped, Session, aliased, with_polymorphic

from magik_sa import EnqueueError, Job, UnknownJob, arg

T, OTHER = UUID(int=7), UUID(int=8)


class Kind(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Point(BaseModel):
    x: int


class OfTenant(Job, policy="system"):
    __abstract__ = True
    tenant_id: Mapped[UUID] = arg()


class Count(OfTenant):
    text: Mapped[str] = arg(default="a")
    whole: Mapped[int] = arg(default=1)
    real: Mapped[float] = arg(default=0.5)
    yes: Mapped[bool] = arg(default=True)
    exact: Mapped[Decimal] = arg(default=Decimal("1.50"))
    moment: Mapped[datetime] = arg(default=datetime(2024, 1, 1, tzinfo=UTC))
    day: Mapped[date] = arg(default=date(2024, 1, 1))
    choice: Mapped[Literal["a", "b"]] = arg(default="a")
    maybe: Mapped[int | None] = arg(default=5)
    none: Mapped[UUID | None] = arg(default=None)
    kind: Mapped[Kind] = arg(default=Kind.SMALL)
    items: Mapped[list[UUID]] = arg(default_factory=list)
    point: Mapped[Point] = arg(default=Point(x=1))
    group: Mapped[set[str]] = arg(default_factory=set)
    table: Mapped[dict[str, Any] | None] = arg(default=None)

    def perform(self, session: Session) -> None: ...


class CountAgain(Count):
    depth: Mapped[int] = arg(default=3)


class Mislead(Job, policy="system"):
    """The same argument names, of other types: what a cast would fail on."""

    tenant_id: Mapped[str] = arg(default="no uuid")
    whole: Mapped[str] = arg(default="no number")

    def perform(self, session: Session) -> None: ...


OTHERS: dict[str, Any] = {
    "text": "b",
    "whole": 2**62,
    "real": 1e300,
    "yes": False,
    "exact": Decimal("2.5"),
    "moment": datetime(2024, 1, 1, 5, 30, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    "day": date(2025, 1, 1),
    "choice": "b",
    "maybe": None,
    "none": OTHER,
    "kind": Kind.LARGE,
    "items": [T, OTHER],
    "point": Point(x=2),
    "group": {"x", "y"},
    "table": {"a": [1, {"b": None}]},
}


@pytest.fixture(params=["psycopg", "psycopg2"])
def session(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Session]:
    own = create_engine(engine.url.set(drivername=f"postgresql+{request.param}"))
    with Session(own) as session:
        yield session
    own.dispose()


@pytest.fixture
def first(session: Session) -> Count:
    """A job with its defaults, beside one with other values and one of another class."""
    first = Count(tenant_id=T)
    session.add_all([first, Mislead(), Count(tenant_id=OTHER, **OTHERS)])
    session.commit()
    return first


def test_a_class_attribute_compares_with_values_of_its_type(session: Session, first: Count) -> None:
    for name, value in OTHERS.items():
        attribute, mine = getattr(Count, name), getattr(first, name)
        found = session.scalars(select(Count).where(attribute == value)).one()
        assert (found.tenant_id, getattr(found, name)) == (OTHER, value), name
        assert session.scalars(select(Count).where(attribute == mine)).one() is first, name
        assert session.scalars(select(attribute).order_by(Count.tenant_id)).all() == [mine, value], name


def test_a_row_that_is_older_than_an_argument_reads_as_its_default(session: Session, first: Count) -> None:
    for name in OTHERS:
        session.execute(text("UPDATE magik_jobs SET args = args - :name"), {"name": name})
        session.refresh(first)
        default = getattr(Count(tenant_id=T), name)
        assert getattr(first, name) == default, name
        assert session.scalars(select(getattr(Count, name))).all() == [default, default], name


def test_order_filter_by_columns_and_aliases(session: Session, first: Count) -> None:
    assert session.scalars(select(Count.text).order_by(Count.whole.desc())).all() == ["b", "a"]
    assert session.scalars(select(Count).filter_by(tenant_id=T, text="a", queue="default")).one() is first
    row = session.execute(select(Count.tenant_id, Count.text).where(Count.text.like("a%"))).one()
    assert (row.tenant_id, row.text) == (T, "a")
    one, other = aliased(Count), aliased(Count)
    pairs = select(one.text, other.text).where(one.whole < other.whole, one.tenant_id != other.tenant_id)
    assert session.execute(pairs).all() == [("a", "b")]
    assert session.scalars(select(Count).where(Count.tenant_id.in_([T, UUID(int=99)]))).one() is first
    assert session.scalars(select(Count).where(Count.maybe.is_(None))).one().tenant_id == OTHER
    assert session.scalars(select(Count).where(Count.table.is_(None))).one() is first


def test_the_guard_keeps_other_classes_from_the_cast(session: Session, first: Count) -> None:
    assert session.scalars(select(Job).where(Count.tenant_id == T)).one() is first
    assert session.scalars(select(Job).where(Count.whole > 0)).all() == session.scalars(select(Count)).all()


def test_an_attribute_of_a_parent_asks_its_children_too(session: Session, first: Count) -> None:
    child = CountAgain(tenant_id=T, whole=77)
    session.add(child)
    session.commit()
    assert set(session.scalars(select(Count).where(Count.tenant_id == T))) == {first, child}
    assert session.scalars(select(CountAgain).where(CountAgain.tenant_id == T)).one() is child
    assert set(session.scalars(select(Job).where(OfTenant.tenant_id == T))) == {first, child}
    assert session.scalars(select(Count).where(CountAgain.depth == 3)).one() is child


def test_every_job_can_be_asked_for_at_once(session: Session, first: Count) -> None:
    assert {type(job) for job in session.scalars(select(Job))} == {Count, Mislead}
    anything = with_polymorphic(Job, [Count, Mislead])
    asked = select(anything).where((anything.Count.text == "b") | (anything.Mislead.whole == "no number"))
    assert {type(job) for job in session.scalars(asked)} == {Count, Mislead}
    assert session.get(Job, first.id) is first
    assert session.get(Mislead, first.id) is None


def test_a_job_is_cancelled_by_a_delete_of_its_row(session: Session, first: Count) -> None:
    session.execute(delete(Count).where(Count.tenant_id == T))
    session.commit()
    assert session.scalars(select(Count.tenant_id)).all() == [OTHER]


def test_a_job_is_moved_by_an_update_of_its_row(session: Session, first: Count) -> None:
    moved = datetime(2040, 1, 1, tzinfo=UTC)
    session.execute(update(Count).where(Count.tenant_id == T).values(run_at=moved, version=Count.version + 1))
    session.commit()
    session.refresh(first)
    assert (first.run_at, first.version) == (moved, 2)


def test_an_argument_is_not_set_by_an_update_of_rows(session: Session, first: Count) -> None:
    with pytest.raises(EnqueueError, match="whole: cannot be set by an UPDATE"):
        session.execute(update(Count).values(whole=3))


def test_a_row_of_an_unknown_class_is_an_unknown_job(session: Session, first: Count) -> None:
    session.execute(text("INSERT INTO magik_jobs (job_class, args) VALUES ('Stranger', jsonb_build_object('who', 1))"))
    unknown = session.scalars(select(Job).where(Job.job_class == "Stranger")).one()
    assert (type(unknown), unknown.job_class, unknown.args) == (UnknownJob, "Stranger", {"who": 1})
    assert len(session.scalars(select(Job)).all()) == 4
    assert session.get(Job, unknown.id) is unknown
    assert "'Stranger'" in repr(unknown)
    assert "who" not in repr(unknown)
