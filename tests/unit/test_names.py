"""Statements in which the names of the tables stand."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "magik_sa"
WITHOUT_VALUES = re.compile(r"execute\(\s*(?:\w+\.)*_?names\.sql\([^()]*\)\s*\)")


def test_each_is_executed_with_values_as_a_percent_sign_in_a_name_is_doubled_for_them() -> None:
    assert WITHOUT_VALUES.search("connection.execute(names.sql(LOCK))")
    assert not WITHOUT_VALUES.search("connection.execute(names.sql(LOCK), {})")
    assert [path.name for path in PACKAGE.rglob("*.py") if WITHOUT_VALUES.search(path.read_text())] == []
