"""Schedules: what may be said, what is stored, and which tick follows which."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magik_sa import DeclarationError, EnqueueError, Schedule

NOW = datetime(2026, 10, 25, 0, 40, 30, 5, tzinfo=UTC)
INDIA = timezone(timedelta(hours=5, minutes=30))
SECONDS = st.integers(0, 130 * 365 * 24 * 60 * 60)
MOMENTS = st.builds(datetime.fromtimestamp, SECONDS | st.floats(0, 2**32), st.sampled_from([UTC, INDIA]))


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        ({"every": "10m"}, {"every": "10m"}),
        ({"every": "90m"}, {"every": "1h30m"}),
        ({"every": "1w"}, {"every": "7d"}),
        ({"every": timedelta(hours=2)}, {"every": "2h"}),
        ({"every": "1s"}, {"every": "1s"}),
        ({"cron": "0 3 * * *", "zone": "Europe/Paris"}, {"cron": "0 3 * * *", "zone": "Europe/Paris"}),
        ({"cron": "  0\t3  * * MON ", "zone": "UTC"}, {"cron": "0 3 * * MON", "zone": "UTC"}),
    ],
)
def test_what_is_stored_is_the_declaration_and_nothing_else(said: dict[str, Any], stored: dict[str, Any]) -> None:
    schedule = Schedule(**said, name="other", args={"secret": 5})
    assert schedule.declaration() == stored
    assert Schedule(**stored).declaration() == stored
    assert "secret" not in repr(schedule)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("every", {}),
        ("every", {"name": "x"}),
        ("every", {"every": "10m", "cron": "* * * * *"}),
        ("every", {"every": "10m", "cron": "* * * * *", "zone": "UTC"}),
        ("zone", {"every": "10m", "zone": "UTC"}),
        ("zone", {"every": "10m", "zone": ""}),
        ("name", {"every": "10m", "name": ""}),
        ("name", {"every": "10m", "name": "a\0b"}),
        ("name", {"every": "10m", "name": "\ud800"}),
        ("name", {"every": "10m", "name": "x" * 256}),
        ("name", {"every": "10m", "name": 5}),
        ("args", {"every": "10m", "args": None}),
        ("args", {"every": "10m", "args": ["tenant"]}),
        ("args", {"every": "10m", "args": {5: "tenant"}}),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_by_its_field(field: str, said: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError) as refused:
        Schedule(**said)
    assert (refused.value.code, refused.value.field) == ("MAGIK_SCHEDULE_INVALID", field)


@pytest.mark.parametrize(
    "every", ["", "10", 10, 10.0, True, "10 minutes", "0s", "-1s", "1ms", "100ms", "1500ms", "1.5s", "4000d", "1m1h"]
)
def test_an_interval_is_a_whole_number_of_seconds_written_as_a_duration(every: Any) -> None:
    with pytest.raises(DeclarationError) as refused:
        Schedule(every=every)
    assert (refused.value.code, refused.value.field) == ("MAGIK_DURATION_INVALID", "every")


@pytest.mark.parametrize("every", [timedelta(0), timedelta(microseconds=1), timedelta(seconds=1, microseconds=1)])
def test_so_is_one_given_as_a_timedelta(every: timedelta) -> None:
    with pytest.raises(DeclarationError) as refused:
        Schedule(every=every)
    assert (refused.value.code, refused.value.field) == ("MAGIK_DURATION_INVALID", "every")


def test_rows_are_named_after_the_class_and_the_schedule() -> None:
    every = [
        Schedule(every="1h", name=name).row(job) for job, name in [("a_", "b"), ("a", "_b"), ("a", "B"), ("a", "b")]
    ]
    assert [Schedule(every="1h").row("Report"), *every] == ["Report", "a_:b", "a:_b", "a:B", "a:b"]
    assert len(set(every)) == 4


def test_the_first_tick_of_an_interval_is_one_interval_away() -> None:
    assert Schedule(every="10m").first(NOW) == NOW + timedelta(minutes=10)


def test_an_interval_that_was_kept_goes_on_from_its_tick_and_not_from_now() -> None:
    tick, late = NOW, NOW + timedelta(seconds=20)
    assert Schedule(every="10m").next(tick, late) == tick + timedelta(minutes=10)


def test_ticks_that_were_missed_are_left_out() -> None:
    tick, hours_later = NOW, NOW + timedelta(hours=5, minutes=3)
    assert Schedule(every="10m").next(tick, hours_later) == tick + timedelta(hours=5, minutes=10)
    paris = Schedule(cron="*/15 * * * *", zone="Europe/Paris")
    assert paris.next(tick, hours_later) == datetime(2026, 10, 25, 5, 45, tzinfo=UTC)


def test_a_tick_that_is_exactly_now_has_been() -> None:
    assert Schedule(every="10m").next(NOW, NOW + timedelta(minutes=10)) == NOW + timedelta(minutes=20)
    quarter = datetime(2026, 10, 25, 0, 45, tzinfo=UTC)
    assert Schedule(cron="*/15 * * * *", zone="UTC").next(quarter, quarter) == quarter + timedelta(minutes=15)


def test_a_tick_in_the_future_of_a_clock_that_was_set_back_is_not_given_again() -> None:
    tick = NOW + timedelta(hours=2)
    assert Schedule(every="10m").next(tick, NOW) == tick + timedelta(minutes=10)
    assert Schedule(cron="0 * * * *", zone="UTC").next(tick, NOW) > tick


@given(MOMENTS, MOMENTS, st.integers(1, 10**7))
def test_the_next_of_an_interval_is_the_least_multiple_that_is_later_than_now(
    tick: datetime, now: datetime, seconds: int
) -> None:
    every = timedelta(seconds=seconds)
    found = Schedule(every=every).next(tick, now)
    assert found > now
    assert found > tick
    assert (found - tick) % every == timedelta(0)
    assert found - every <= max(tick, now)
    assert found.tzinfo is UTC


@pytest.mark.parametrize("said", [{"every": "10m"}, {"cron": "0 3 * * *", "zone": "Asia/Kolkata"}])
@given(MOMENTS, MOMENTS)
def test_only_the_instants_count_and_not_how_they_are_written(
    said: dict[str, Any], tick: datetime, now: datetime
) -> None:
    schedule = Schedule(**said)
    assert schedule.next(tick, now) == schedule.next(tick.astimezone(INDIA), now.astimezone(UTC))


@pytest.mark.parametrize("said", [{"every": "10m"}, {"cron": "0 3 * * *", "zone": "UTC"}])
def test_a_naive_time_is_refused(said: dict[str, Any]) -> None:
    naive = NOW.replace(tzinfo=None)
    for field, tick, now in [("tick", naive, NOW), ("now", NOW, naive)]:
        with pytest.raises(EnqueueError) as refused:
            Schedule(**said).next(tick, now)
        assert (refused.value.code, refused.value.field) == ("MAGIK_ARGS_INVALID", field)
    with pytest.raises(EnqueueError):
        Schedule(**said).first(naive)


def test_a_schedule_is_a_value() -> None:
    said: dict[str, Any] = {"cron": "0 3 * * *", "zone": "Europe/Paris", "name": "n", "args": {"x": [1]}}
    one, other = Schedule(**said), Schedule(**said)
    assert one == other
    assert len({one, other, Schedule(every="1h")}) == 2
    assert pickle.loads(pickle.dumps(one)) == copy.copy(one) == one
    assert pickle.loads(pickle.dumps(one)).first(NOW) == one.first(NOW)
    said["args"]["y"] = 2
    assert one.args == {"x": [1]}
    with pytest.raises(AttributeError):
        one.name = "m"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
