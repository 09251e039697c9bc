"""A type is written as in the body of a class."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict
from uuid import UUID

import pytest
from pydantic import Field

from magik_sa.briefly import briefly

Cents = NewType("Cents", int)


class Line(TypedDict):
    amount: int


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (int, "int"),
        (UUID, "UUID"),
        (datetime, "datetime"),
        (Line, "Line"),
        (Cents, "int"),
        (list[UUID], "list[UUID]"),
        (dict[str, Decimal], "dict[str, Decimal]"),
        (Decimal | None, "Decimal | None"),
        (Optional[UUID], "Optional[UUID]"),  # noqa: UP045
        (Annotated[int, Field(gt=3)], "int"),
        (list[Annotated[int, Field(gt=3)]], None),
        (Literal["s3cret", "other"], None),
        (dict[str, dict[str, dict[str, dict[str, int]]]], None),
    ],
)
def test_a_type_is_written_in_short_or_not_at_all(annotation: Any, said: str | None) -> None:
    assert briefly(annotation) == said
