"""The key of a job: equal values, one key; unequal ones, or other types, another."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, arg


class Keyed(Job, policy="system"):
    idempotent_by = ("a", "b")
    a: Mapped[Any] = arg(default=None)
    b: Mapped[Any] = arg(default=None)
    other: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None: ...


class KeyedByMoney(Job, policy="system"):
    idempotent_by = ("amount", "at", "share", "marks")
    amount: Mapped[Decimal] = arg(default=Decimal(0))
    at: Mapped[datetime] = arg(default=datetime(2024, 1, 1, tzinfo=UTC))
    share: Mapped[float] = arg(default=0.0)
    marks: Mapped[set[str]] = arg(default_factory=set)

    def perform(self, session: Session) -> None: ...


class Unkeyed(Job, policy="system"):
    def perform(self, session: Session) -> None: ...


class KeyedSwapped(Job, policy="system"):
    idempotent_by = ("b", "a")
    a: Mapped[Any] = arg()
    b: Mapped[Any] = arg()

    def perform(self, session: Session) -> None: ...


def test_a_key_has_32_bytes_and_is_known_at_once() -> None:
    assert len(Keyed(a=1).key_digest or b"") == 32
    assert Unkeyed().key_digest is None


def test_different_values_and_types_are_different_keys() -> None:
    values: list[Any] = [
        None,
        1,
        "1",
        1.5,
        "1.5",
        True,
        "true",
        "null",
        [],
        {},
        [1, 2],
        [2, 1],
        "[1,2]",
        {"a": 1},
        ["a", 1],
        "",
        " ",
        "é",
        "e\u0301",
    ]
    digests = [Keyed(a=value).key_digest for value in values] + [Keyed(b=value).key_digest for value in values[1:]]
    assert len(set(digests)) == len(digests)
    assert Keyed(a=1, b=2).key_digest != Keyed(a=2, b=1).key_digest


def test_what_is_no_part_of_the_key_does_not_matter() -> None:
    assert Keyed(a=1, other=1).key_digest == Keyed(a=1, other=2).key_digest


def test_the_order_of_names_and_of_a_dict_does_not_matter() -> None:
    assert Keyed(a=1, b=2).key_digest == KeyedSwapped(a=1, b=2).key_digest
    assert Keyed(a={"x": 1, "y": 2}).key_digest == Keyed(a={"y": 2, "x": 1}).key_digest


@pytest.mark.parametrize(
    ("name", "equal", "unequal"),
    [
        ("amount", [Decimal("1.0"), Decimal("1.00"), Decimal("0.1E+1")], [Decimal("1.01"), Decimal(10), Decimal(-1)]),
        ("amount", [Decimal(0), Decimal("-0.00"), Decimal("0E+9")], [Decimal("1E-40")]),
        ("amount", [Decimal("1." + "0" * 40)], [Decimal("1." + "0" * 40 + "1")]),
        (
            "at",
            [
                datetime(2024, 1, 1, 5, 30, tzinfo=timezone(timedelta(hours=5, minutes=30))),
                datetime(2024, 1, 1, tzinfo=UTC),
            ],
            [datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
        ),
        ("at", [datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))], [datetime.max.replace(tzinfo=UTC)]),
        ("share", [0.0, -0.0], [1e-300]),
        ("marks", [{"a", "b", "c"}, {"c", "b", "a"}], [{"a"}]),
    ],
)
def test_values_that_are_equal_are_one_key(name: str, equal: list[Any], unequal: list[Any]) -> None:
    same = {KeyedByMoney(**{name: value}).key_digest for value in equal}
    others = {KeyedByMoney(**{name: value}).key_digest for value in unequal}
    assert len(same) == 1
    assert len(others) == len(unequal)
    assert same.isdisjoint(others)


def test_the_key_follows_its_arguments_until_the_job_is_flushed() -> None:
    job = Keyed(a=1)
    job.a = 2
    assert job.key_digest == Keyed(a=2).key_digest


def test_the_digest_is_pinned() -> None:
    """Rows of an older release must keep meaning the same key."""
    job = Keyed(a=1, b="ß")
    assert job.key_digest is not None
    assert job.key_digest.hex() == "08c6178e97143512f62ccf2562e4d4816017d6be257a7a5e11c57e20f0aee365"
