"""Durations read as people write them, refuse what is ambiguous, and are written back the same way."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from magik_sa.duration import LONGEST, UNITS, duration, text
from magik_sa.errors import DeclarationError


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("30s", timedelta(seconds=30)),
        ("10m", timedelta(minutes=10)),
        ("1h30m", timedelta(minutes=90)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(days=14)),
        ("1w2d3h4m5s6ms", timedelta(weeks=1, days=2, hours=3, minutes=4, seconds=5, milliseconds=6)),
        ("1.5h", timedelta(minutes=90)),
        ("0.25s", timedelta(milliseconds=250)),
        ("90m", timedelta(minutes=90)),
        ("0h10m", timedelta(minutes=10)),
        ("007s", timedelta(seconds=7)),
        (" 10m\n", timedelta(minutes=10)),
        ("3650d", LONGEST),
    ],
)
def test_a_duration_is_read(written: str, meant: timedelta) -> None:
    assert duration(written) == meant


@pytest.mark.parametrize(
    "written",
    [
        *("", " ", "s", "10", "10.0", "m10", "10 m", "10m 5s", "10m,5s", "-10m", "+10m", "1e3s", "10M", "10min", "10y"),
        *(
            "ten m",
            ".5s",
            "5.s",
            "1.2.3s",
            "10m\x00",
            "\u0661\u0660s",
            "10\uff4d",
            "1_000s",
            "0x10s",
            "nan",
            "infs",
            "10ms5",
        ),
        *("5m1h", "5m5m", "1s1m", "1ms1s", "1h1h1m"),
        *("0s", "0.0h", "0.0000001s", "3650d1ms", "523w", "999999999w", "999999999w999999999d", "9999999999s"),
    ],
)
def test_what_is_no_duration_is_refused(written: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        duration(written, field="timeout")
    assert caught.value.code == "MAGIK_DURATION_INVALID"
    assert caught.value.field == "timeout"
    assert f"timeout={written!r}" in str(caught.value)


@pytest.mark.parametrize("value", [10, 10.0, True, None, b"10m", ["10m"], object])
def test_a_bare_number_or_anything_else_is_refused(value: object) -> None:
    with pytest.raises(DeclarationError, match="MAGIK_DURATION_INVALID"):
        duration(value)


def test_a_timedelta_passes_within_the_bounds() -> None:
    assert duration(timedelta(minutes=3)) == timedelta(minutes=3)
    for wrong in (timedelta(0), timedelta(seconds=-1), LONGEST + timedelta(microseconds=1), timedelta.max):
        with pytest.raises(DeclarationError, match="out of range"):
            duration(wrong)


@pytest.mark.parametrize("nothing", ["0s", "0h0m", timedelta(0)])
def test_zero_passes_only_where_it_is_asked_for(nothing: object) -> None:
    assert duration(nothing, zero=True) == timedelta(0)
    with pytest.raises(DeclarationError, match="out of range"):
        duration(nothing)


@given(st.lists(st.sampled_from(sorted(UNITS, key=lambda unit: -UNITS[unit])), unique=True, min_size=1), st.data())
def test_what_is_written_in_falling_units_is_their_sum(units: list[str], data: st.DataObject) -> None:
    units.sort(key=lambda unit: -UNITS[unit])
    numbers = [data.draw(st.integers(1, 300)) for _ in units]
    written = "".join(f"{number}{unit}" for number, unit in zip(numbers, units, strict=True))
    assert duration(written) == sum((n * UNITS[unit] for n, unit in zip(numbers, units, strict=True)), timedelta(0))


@given(st.integers(1, LONGEST // timedelta(milliseconds=1)))
@example(1)
@example(LONGEST // timedelta(milliseconds=1))
def test_what_is_written_is_read_back_the_same(milliseconds: int) -> None:
    span = timedelta(milliseconds=milliseconds)
    assert duration(text(span)) == span


@given(st.text(st.sampled_from("0123456789.smhdw -e٣"), max_size=12) | st.text(max_size=8))
def test_every_text_is_a_duration_within_the_bounds_or_refused(written: str) -> None:
    with contextlib.suppress(DeclarationError):
        assert timedelta(0) < duration(written) <= LONGEST


@pytest.mark.parametrize(
    ("span", "written"),
    [
        (timedelta(seconds=90), "1m30s"),
        (timedelta(weeks=1), "7d"),
        (timedelta(milliseconds=1), "1ms"),
        (timedelta(days=1, milliseconds=1), "1d1ms"),
        (timedelta(0), "0s"),
    ],
)
def test_a_duration_is_written_in_falling_units(span: timedelta, written: str) -> None:
    assert text(span) == written
