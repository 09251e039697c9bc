"""Each promise holds with its mechanism, and its test fails where the mechanism is gone."""

from __future__ import annotations

import os

import pytest
from sqlalchemy import URL

from tests.tools.server import Server

from .__main__ import chosen, row
from .run import Said, verdict, verdicts
from .table import LINES

LONG = os.environ.get("MAGIK_CHAOS") == "long"
LINE = LINES[0]
PASSED = [Said(LINE.test, None, None, skipped=False)]
FAILED = [Said(LINE.test, "AssertionError: assert (1, 1) == (0, 0)", None, skipped=False)]


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_each_promise_is_kept_with_its_mechanism_and_not_without(server: Server) -> None:
    """Some of the lines of `python -m tests.promises`; all of them with MAGIK_CHAOS=long."""
    place = URL.create(
        "postgresql+psycopg", server.user, server.password, server.host, server.port, server.maintenance_dbname
    )
    found = list(verdicts(chosen([], short=not LONG), place.render_as_string(hide_password=False)))
    assert [row(verdict) for verdict in found if not verdict.right] == []


def test_every_promise_has_a_line() -> None:
    assert {line.promise.partition(",")[0] for line in LINES} == {str(number) for number in range(1, 11)}
    assert [line.promise for line in chosen(["6"], short=False)] == ["6", "6"]


def test_green_with_it_and_red_without_it_is_right() -> None:
    assert verdict(LINE, PASSED, FAILED, 1.0).right


@pytest.mark.parametrize(
    ("green", "red"),
    [
        (FAILED, FAILED),
        ([], FAILED),
        ([Said(LINE.test, None, None, skipped=True)], FAILED),
        ([Said(LINE.test, None, "no server", skipped=False)], FAILED),
        (PASSED, PASSED),
        (PASSED, []),
        (PASSED, [Said(LINE.test, "ImportError: no module", None, skipped=False)]),
        (PASSED, [Said(LINE.test, None, "AssertionError: assert (1, 1) == (0, 0)", skipped=False)]),
    ],
    ids=[
        "never green",
        "not run",
        "skipped",
        "broken",
        "never red",
        "nothing ran",
        "another reason",
        "before the test",
    ],
)
def test_anything_else_is_not(green: list[Said], red: list[Said]) -> None:
    assert not verdict(LINE, green, red, 1.0).right
