"""Retries: the table of waits, its bounds, and what is refused."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magik_sa import DeclarationError, Retries


def seconds(retries: Retries, *tries: int) -> list[float]:
    return [retries.delay(number).total_seconds() for number in tries]


def test_exponential_doubles_up_to_the_cap() -> None:
    assert seconds(Retries(base="5s", cap="1m", jitter=0), 1, 2, 3, 4, 5, 6) == [5, 10, 20, 40, 60, 60]


def test_linear_grows_by_the_base() -> None:
    assert seconds(Retries(backoff="linear", base="10s", cap="25s", jitter=0), 1, 2, 3) == [10, 20, 25]


def test_constant_stays() -> None:
    assert seconds(Retries(backoff="constant", base="10s", jitter=0), 1, 2, 30_000) == [10, 10, 10]


def test_a_function_tells_the_wait() -> None:
    assert seconds(Retries(backoff=lambda tries: f"{tries}m", cap="3m", jitter=0), 1, 2, 9) == [60, 120, 180]


@pytest.mark.parametrize("answer", [None, -3, "soon", timedelta(days=-1)])
def test_a_function_that_answers_nonsense_waits_for_the_cap(answer: Any) -> None:
    assert seconds(Retries(backoff=lambda _: answer, cap="3m", jitter=0), 1) == [180]


def test_a_function_that_raises_waits_for_the_cap() -> None:
    assert seconds(Retries(backoff=lambda tries: f"{1 // (tries - 1)}s", cap="3m", jitter=0), 1) == [180]
    assert seconds(Retries(backoff=lambda tries: sys.exit(tries), cap="3m", jitter=0), 1) == [180]


@given(st.sampled_from(["exponential", "linear", "constant"]), st.integers(-5, 2**63), st.floats(0, 1))
def test_no_number_of_tries_overflows_and_jitter_only_takes_off(backoff: Any, tries: int, jitter: float) -> None:
    exact = Retries(backoff=backoff, jitter=0).delay(tries)
    assert (
        exact * (1 - jitter) - timedelta(milliseconds=1)
        <= Retries(backoff=backoff, jitter=jitter).delay(tries)
        <= exact
    )
    assert exact <= timedelta(hours=1)


def test_starts_are_one_and_the_times() -> None:
    assert [Retries(times=2).exhausted(errors) for errors in (1, 2, 3)] == [False, False, True]
    assert Retries(times=0).exhausted(1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("times", -1),
        ("times", 2.5),
        ("times", True),
        ("times", 10**9),
        ("backoff", "quadratic"),
        ("base", 5),
        ("base", "0s"),
        ("cap", "soon"),
        ("cap", "1s"),
        ("jitter", 1.5),
        ("jitter", float("nan")),
        ("jitter", "0.1"),
        ("timeout", 30),
        ("timeout", "0s"),
        ("timeout", "-5s"),
        ("timeout", "for ever"),
        ("timeout", "4000d"),
    ],
)
def test_what_is_wrong_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(DeclarationError) as refused:
        Retries(**{field: value})
    assert (refused.value.code, refused.value.field) == ("MAGIK_RETRIES_INVALID", field)


@pytest.mark.parametrize("field", ["base", "cap", "timeout"])
def test_whoever_writes_a_number_is_told_how_durations_are_written(field: str) -> None:
    number: Any = {field: 30}
    with pytest.raises(
        DeclarationError, match=rf'Retries\({field}=30\): not a duration\. Write durations as text .*"30s"'
    ):
        Retries(**number)
