"""Values that are their own JSON are taken and read as any others are, only sooner; so is the JSON of a row."""

from __future__ import annotations

import enum
import json
from typing import Annotated, Any, Literal, NewType

import pytest
from pydantic import AfterValidator, Field, TypeAdapter

from magik_sa.args import Argument, Spec
from magik_sa.errors import EnqueueError
from magik_sa.roundtrip import plain
from magik_sa.unreadable import Unreadable, loaded


class Number(enum.IntEnum):
    ONE = 1


class Text(str):
    __slots__ = ()


KINDS: list[Any] = [
    int,
    str,
    bool,
    float,
    Any,
    int | None,
    Literal["a", 1],
    Annotated[int, Field(gt=3)],
    Annotated[str, AfterValidator(str.upper)],
    NewType("Euros", int),
    Number,
]
VALUES: list[Any] = [
    *(0, 1, -1, 5, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**400, True, False, 1.0, None, Number.ONE),
    *("", "a", "ada", "12", "true", "ü", "\u2028", "\0", "\n", "\x7f", '"', "\\", "\ud800", "x" * 300, Text("a"), b"a"),
]


def outcome(argument: Argument, value: object) -> Any:
    """What becomes of it: the value, its JSON, and what is read of that; or why it is refused."""
    try:
        taken = argument.take(value)
        back = argument.read(taken.stored)
    except EnqueueError as error:
        return error.what
    return taken, type(taken.value), type(taken.stored), back, type(back)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_value_that_is_its_own_json_is_taken_as_by_pydantic(kind: Any) -> None:
    fast, slow = (Argument("it", kind, TypeAdapter(kind), Spec()) for _ in range(2))
    vars(slow)["_itself"] = None
    for value in VALUES:
        assert outcome(fast, value) == outcome(slow, value), repr(value)[:80]


def test_most_values_are() -> None:
    assert [plain(value) for value in (3, -3, True, "ada, 7", "")] == [b"3", b"-3", b"true", b'"ada, 7"', b'""']
    assert [plain(value) for value in (2**63, "ü", '"', "\n", 1.5, None)] == [b""] * 6


JSON = [
    *("{}", "[]", "null", "-0", "-0.0", "1e400", "-1e400", "5e-324", "9007199254740993", "9007199254740993.0", "1E5"),
    *(
        "3.141592653589793238462643",
        "123456789012345678901234567890",
        '"\\ud83d\\ude00"',
        '"\\u0001"',
        "[" * 300 + "]" * 300,
    ),
    *("1" * 4_000, '{"b": 1, "a": {"c": [1.0, true, null]}}'),
]


@pytest.mark.parametrize("text", JSON, ids=lambda text: text[:20])
def test_the_json_of_a_row_is_read_as_python_reads_it(text: str) -> None:
    for data in (text, text.encode()):
        assert repr(loaded(data)) == repr(json.loads(text))


@pytest.mark.parametrize("text", ["1" * 5_000, "[" * 100_000 + "]" * 100_000])
def test_what_python_cannot_hold_says_why(text: str) -> None:
    assert isinstance(loaded(text), Unreadable)
    assert loaded(text).why
