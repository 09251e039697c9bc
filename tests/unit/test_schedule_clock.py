"""Crons across changes of the clock: held to a walk that looks at the clock on the wall each minute."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from io import BytesIO
from itertools import islice
from struct import pack
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from magik_sa import DeclarationError, Schedule
from magik_sa.clock import instant_of, shown
from magik_sa.cron import Cron
from magik_sa.walk import following
from tests.tools.wall import changes, dues, minutes

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
WITHIN = 0.050  # seconds for one call
ZONES = [
    "Africa/Cairo",  # at midnight
    "Africa/Casablanca",  # back for Ramadan
    "America/Asuncion",
    "America/Havana",  # from 0:00, to 0:00
    "America/New_York",
    "America/Santiago",  # at midnight
    "America/Sao_Paulo",  # back from midnight to the day before
    "America/Scoresbysund",
    "America/St_Johns",  # at 0:01
    "Antarctica/Casey",
    "Antarctica/Troll",  # two hours
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Kathmandu",  # never
    "Asia/Pyongyang",  # half an hour over midnight
    "Asia/Tehran",
    "Asia/Amman",
    "Atlantic/Azores",
    "Australia/Adelaide",
    "Australia/Lord_Howe",  # half an hour
    "Europe/Dublin",  # the winter is the exception
    "Europe/London",
    "Europe/Istanbul",
    "Europe/Paris",
    "Europe/Volgograd",
    "Pacific/Apia",  # without 30 December 2011
    "Pacific/Auckland",
    "Pacific/Chatham",
    "Pacific/Fakaofo",  # without 30 December 2011
    "Pacific/Norfolk",
]
BY_AN_HOUR_IN_THE_NIGHT = {"America/New_York", "Australia/Adelaide", "Europe/Dublin", "Europe/London", "Europe/Paris"}
BY_AN_HOUR_IN_THE_NIGHT |= {"Pacific/Auckland", "Pacific/Chatham", "Pacific/Norfolk"}
EXPRESSIONS = """
* * * * *|*/7 * * * *|0 0 29 2 *|0 5 * * *|0 * * * *|*/15 * * * *|30 * * * *|0 3 * * *|30 2 * * *|0 2 * * *|30 1 * * *
0 0 * * *|30 0 * * *|59 23 * * *|0 1 * * *|15,45 1-3 * * *|0 0-23 * * *|*/15 2 * * *|*/30 0 * * *|0 */2 * * *
0 */6 * * *|5 */3 * * *|*/59 * * * *|0 0 1 * *|0 2 25-31 3 *|0 2 25-31 10 *|*/20 1 25-31 10 *|30 2 * * SUN
*/10 2 * * SUN|0 0 13 * 5|* * 5 3 1-7|*/25 */10 4-28 * */3|0 0 1 * 0|0 0 * * 7|0 9 * * MON-FRI|0 9 * JAN-MAR/2 *
0 0 31 * *|0 12 1 1 *|0 0 1 */3 *|59 23 31 12 *|1 2 3 4 5|0 0 */2 * 1|0 0-6/2 * * *|0 22-23 * * 6,7|*/2 23 * * *
30 23 * * *|0,30 0,12 * * *|0 4 * 4,10 sun|* 1 * * *|*/5 */5 */5 */5 */5
""".replace("\n", "|").strip("|").split("|")  # fmt: skip


@cache
def zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


@cache
def changed(name: str, first: int, last: int) -> list[datetime]:
    """When the clocks of a zone change, in the years from `first` to `last`; a day in June where they never do."""
    return changes(zone(name), range(first, last + 1)) or [datetime(last, 6, 1, tzinfo=UTC)]


def ticks(cron: str, name: str, start: datetime) -> Iterator[datetime]:
    schedule, tick = Schedule(cron=cron, zone=name), start
    while True:
        tick = schedule.next(tick, tick)
        yield tick


def listed(cron: str, name: str, start: datetime, end: datetime) -> list[datetime]:
    """What a schedule gives, tick by tick, after `start` and up to `end`."""
    found: list[datetime] = []
    for tick in ticks(cron, name, start):
        if tick > end:
            return found
        found.append(tick)
    raise AssertionError


FIELDS = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 7)}


def ranges(low: int, high: int) -> st.SearchStrategy[str]:
    """A rising range, with a step or without."""
    ends = st.lists(st.integers(low, high), min_size=2, max_size=2, unique=True).map(sorted)
    return ends.flatmap(
        lambda pair: st.one_of(st.just(""), st.integers(1, pair[1] - pair[0]).map("/{}".format)).map(
            f"{pair[0]}-{pair[1]}{{}}".format
        )
    )


def field(kind: str) -> st.SearchStrategy[str]:
    """Any text that the grammar has for one field; for hours those more often at which clocks are changed."""
    low, high = FIELDS[kind]
    values = st.integers(low, high)
    if kind == "hour":
        values |= st.sampled_from([0, 1, 2, 3, 23])
    steps = st.integers(1, high - low - (kind == "weekday")).map("*/{}".format)
    parts = st.lists(values.map(str) | ranges(low, high), min_size=1, max_size=3).map(",".join)
    return st.one_of(st.just("*"), steps, values.map(str), parts)


CRONS = st.tuples(*map(field, FIELDS)).map(" ".join)
DAILY = st.tuples(field("minute"), field("hour"), *[st.just("*")] * 3).map(" ".join)
ODD = [("Pacific/Apia", 2009), ("Pacific/Fakaofo", 2011), ("America/Sao_Paulo", 2016), ("Asia/Pyongyang", 2015)]
PLACES = st.sampled_from([(name, 2023) for name in ZONES] + ODD).flatmap(
    lambda place: st.tuples(st.just(place[0]), st.sampled_from(changed(place[0], place[1], place[1] + 4)))
)
AROUND = st.timedeltas(-26 * HOUR, 26 * HOUR) | st.timedeltas(-2 * HOUR, 2 * HOUR)
THOROUGH = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def declared(cron: str, name: str) -> Schedule:
    try:
        return Schedule(cron=cron, zone=name)
    except DeclarationError as refused:
        assume(refused.code != "MAGIK_SCHEDULE_NEVER")  # 30 February
        raise


@THOROUGH
@given(DAILY | CRONS, PLACES, AROUND)
def test_the_next_tick_is_the_one_that_a_walk_minute_by_minute_finds(
    cron: str, place: tuple[str, datetime], around: timedelta
) -> None:
    name, change = place
    now, schedule = change + around, declared(cron, name)
    start = now.replace(second=0, microsecond=0) + MINUTE
    end = start + DAY + HOUR * 5
    walked = next(dues(cron, zone(name), start, end), None)
    found = schedule.next(now, now)
    assert found == walked if walked else found > end


@settings(THOROUGH, derandomize=True)  # the same cases each time, so that a fault of its own is none of ours
@given(CRONS, PLACES, st.timedeltas(-timedelta(days=400), timedelta(days=400)))
def test_the_next_tick_is_the_one_that_cronsim_finds(cron: str, place: tuple[str, datetime], around: timedelta) -> None:
    """Its rules are ours. But it has times of a date that the zone skips, and where time elapses it errs at changes of
    half an hour and at those over midnight, so there it is asked where clocks are changed by an hour in the night.
    """
    name, change = place
    now, schedule = change + around, declared(cron, name)
    assume(not Cron.of(cron).elapses or name in BY_AN_HOUR_IN_THE_NIGHT)
    found, local = schedule.next(now, now), now.astimezone(zone(name))
    assume((name, found.date().year) not in [("Pacific/Apia", 2011), ("Pacific/Fakaofo", 2011)])
    theirs = (tick.astimezone(UTC) for tick in CronSim(cron, local))
    assert found == next(tick for tick in theirs if tick > now)


@pytest.mark.parametrize("cron", EXPRESSIONS)
def test_every_call_ends_soon_strictly_later_across_both_changes_of_the_year(cron: str) -> None:
    """From every fifth minute of the four hours around each change, spread over the zones; 50 crons in 30 zones."""
    assert (len(EXPRESSIONS), len(ZONES)) == (50, 30)
    slowest = 0.0
    for number, name in enumerate(ZONES):
        schedule = Schedule(cron=cron, zone=name)
        for change in changed(name, 2026, 2026):
            for five in range(-24 + number % 8, 24, 8):
                now = change + 5 * five * MINUTE
                began = time.thread_time()
                found = schedule.next(now, now)
                slowest = max(slowest, time.thread_time() - began)
                assert found > now
                assert found.tzinfo is UTC
    assert slowest < WITHIN


@pytest.mark.parametrize("cron", ["0 0 29 2 *", "*/30 2 29 2 0-6", "* * */28 2 0", "59 23 */30 12 */6", "0 0 29 2 */6"])
@pytest.mark.parametrize("now", [datetime(2026, 3, 1, tzinfo=UTC), datetime(2096, 3, 1, tzinfo=UTC)])
def test_rare_days_are_found_as_soon(cron: str, now: datetime) -> None:
    schedule = Schedule(cron=cron, zone="Europe/Paris")
    began = time.thread_time()
    assert schedule.next(now, now) > now
    assert time.thread_time() - began < WITHIN


def test_a_date_that_is_repeated_is_got_past_at_once() -> None:
    """Kwajalein went over the date line in 1969: for 23 hours its clocks showed what they had shown."""
    (change,) = changed("Pacific/Kwajalein", 1969, 1969)
    schedule, now = Schedule(cron="0-59 0-23 * * *", zone="Pacific/Kwajalein"), change + 5 * MINUTE
    began = time.thread_time()
    found = schedule.next(now, now)
    assert time.thread_time() - began < WITHIN
    assert found == change + 23 * HOUR
    assert schedule.next(now - 6 * MINUTE, now - 6 * MINUTE) == found


# The days with 25 hours and with 23, and in Lord Howe, where the clock moves by half an hour, with 24.5 and 23.5.
@pytest.mark.parametrize(
    ("name", "date", "cron", "runs"),
    [
        ("Europe/Paris", (2026, 10, 25), "0 * * * *", 25),
        ("Europe/Paris", (2026, 3, 29), "0 * * * *", 23),
        ("Europe/Paris", (2026, 10, 25), "*/15 * * * *", 100),
        ("Europe/Paris", (2026, 3, 29), "*/15 * * * *", 92),
        ("Europe/Paris", (2026, 10, 25), "* * * * *", 1500),
        ("Europe/Paris", (2026, 3, 29), "* * * * *", 1380),
        ("America/New_York", (2026, 11, 1), "0 * * * *", 25),
        ("America/New_York", (2026, 3, 8), "0 * * * *", 23),
        ("Australia/Lord_Howe", (2026, 4, 5), "*/30 * * * *", 49),
        ("Australia/Lord_Howe", (2026, 10, 4), "*/30 * * * *", 47),
        ("Australia/Lord_Howe", (2026, 4, 5), "*/15 * * * *", 98),
        ("Australia/Lord_Howe", (2026, 10, 4), "*/15 * * * *", 94),
        ("Australia/Lord_Howe", (2026, 4, 5), "30 * * * *", 25),
        ("Australia/Lord_Howe", (2026, 10, 4), "0 * * * *", 23),
        ("Europe/Paris", (2026, 10, 25), "30 2 * * *", 1),
        ("Europe/Paris", (2026, 3, 29), "30 2 * * *", 1),
        ("Europe/Paris", (2026, 10, 25), "0 3 * * *", 1),
        ("Europe/Paris", (2026, 3, 29), "0 3 * * *", 1),
        ("Europe/Paris", (2026, 3, 29), "0,30 2 * * *", 1),
        ("Europe/Paris", (2026, 10, 25), "0,30 2 * * *", 2),
        ("Europe/Paris", (2026, 10, 25), "*/15 2 * * *", 8),
        ("Europe/Paris", (2026, 3, 29), "*/15 2 * * *", 0),
    ],
)
def test_a_day_of_a_change_has_so_many_runs(name: str, date: tuple[int, int, int], cron: str, runs: int) -> None:
    midnight = datetime(*date, tzinfo=zone(name))
    start, end = midnight.astimezone(UTC) - MINUTE, (midnight + DAY).astimezone(UTC) - MINUTE
    assert len(listed(cron, name, start, end)) == runs


@pytest.mark.parametrize("name", ["Europe/Paris", "Australia/Lord_Howe"])
def test_between_two_ticks_of_an_interval_its_time_goes_by(name: str) -> None:
    for change in changed(name, 2026, 2026):
        schedule, tick = Schedule(every="10m"), change - DAY
        for _ in range(300):
            after = schedule.next(tick.astimezone(zone(name)), tick.astimezone(zone(name)))
            assert (after - tick, after.tzinfo) == (timedelta(minutes=10), UTC)
            tick = after


@pytest.mark.parametrize(
    ("cron", "name", "at", "expected"),
    [
        # skipped: at the change, once
        ("30 2 * * *", "Europe/Paris", "2026-03-28T12:00", "2026-03-29T01:00 2026-03-30T00:30 2026-03-31T00:30"),
        ("0 0 * * *", "America/Santiago", "2026-09-05T12:00", "2026-09-06T04:00 2026-09-07T03:00 2026-09-08T03:00"),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00", "2026-10-03T15:30 2026-10-04T15:15 2026-10-05T15:15"),
        ("45 23 * * *", "Asia/Pyongyang", "2018-05-04T00:00", "2018-05-04T15:00 2018-05-05T14:45 2018-05-06T14:45"),
        # shown twice: at the first
        ("30 2 * * *", "Europe/Paris", "2026-10-24T12:00", "2026-10-25T00:30 2026-10-26T01:30 2026-10-27T01:30"),
        ("30 2 * * *", "Europe/Paris", "2026-10-25T01:10", "2026-10-26T01:30 2026-10-27T01:30 2026-10-28T01:30"),
        ("30 23 * * *", "America/Sao_Paulo", "2018-02-17T12:00", "2018-02-18T01:30 2018-02-19T02:30 2018-02-20T02:30"),
        ("0 0 * * *", "America/Sao_Paulo", "2018-02-17T12:00", "2018-02-18T03:00 2018-02-19T03:00 2018-02-20T03:00"),
        ("0 0 * * *", "Atlantic/Azores", "2026-10-24T12:00", "2026-10-25T00:00 2026-10-26T01:00 2026-10-27T01:00"),
        # a date that the zone skips has none
        ("0 3 * * *", "Pacific/Apia", "2011-12-29T00:00", "2011-12-29T13:00 2011-12-30T13:00 2011-12-31T13:00"),
        ("0 3 30 12 *", "Pacific/Apia", "2011-12-01T00:00", "2012-12-29T13:00 2013-12-29T13:00 2014-12-29T13:00"),
    ],
)
def test_a_time_of_the_day_comes_once_a_date(cron: str, name: str, at: str, expected: str) -> None:
    start = datetime.fromisoformat(at).replace(tzinfo=UTC)
    assert [f"{tick:%Y-%m-%dT%H:%M}" for tick in islice(ticks(cron, name, start), 3)] == expected.split()


def test_in_the_repeated_hour_an_instant_is_not_due_because_the_clock_has_shown_its_time() -> None:
    """Python orders two times of one zone by what the clock shows, and so has the second 1:30 before the first 1:45."""
    new_york = zone("America/New_York")
    first_quarter_to = datetime(2026, 11, 1, 1, 45, tzinfo=new_york)
    second_half_past = datetime(2026, 11, 1, 1, 30, fold=1, tzinfo=new_york)
    assert second_half_past < first_quarter_to  # the trap
    schedule, last = Schedule(every="1h"), datetime(2026, 11, 1, 1, 30, tzinfo=new_york)
    due = schedule.next(last, first_quarter_to)
    assert (due, due.tzinfo) == (datetime(2026, 11, 1, 6, 30, tzinfo=UTC), UTC)
    assert due == second_half_past.astimezone(UTC)
    assert schedule.next(last, second_half_past - MINUTE) == due
    assert schedule.next(last, second_half_past) == due + timedelta(hours=1)
    hourly = Schedule(cron="30 * * * *", zone="America/New_York")
    assert hourly.next(last, first_quarter_to) == due


@pytest.mark.parametrize(("cron", "at"), [("30 * * * *", "2026-10-25T01:20"), ("45 2 * * *", "2026-10-25T01:30")])
def test_a_walk_over_the_calendar_alone_would_not_get_past_the_repeated_hour(cron: str, at: str) -> None:
    """The next time in the calendar, taken for an instant, is one that has been: such a schedule is due without end."""
    paris, now = zone("Europe/Paris"), datetime.fromisoformat(at).replace(tzinfo=UTC)
    assert instant_of(Cron.of(cron).following(shown(now, paris)), paris) <= now
    assert Schedule(cron=cron, zone="Europe/Paris").next(now, now) > now


def odd_zone(rule: str) -> ZoneInfo:
    """A zone that no place has: UTC, and a summer time by this rule from the year 1970 on."""
    header = b"TZif2" + bytes(15) + pack(">6l", 0, 0, 0, 0, 1, 4)  # no changes, one kind of time, four letters
    kind = pack(">lbb", 0, 0, 0) + b"XXX\0"
    return ZoneInfo.from_file(BytesIO((header + kind) * 2 + f"\n{rule}\n".encode()))


def test_a_walk_over_times_that_the_clock_skips_each_year_ends() -> None:
    """On 1 March from two to three, for ever; no zone does that today."""
    odd, now = odd_zone("XXX0YYY,J60/2,J300/3"), datetime(2026, 1, 1, tzinfo=UTC)
    shown = [local.hour for _, local in minutes(odd, now.replace(month=3), now.replace(month=3, hour=4))]
    assert (2 in shown, 3 in shown) == (False, True)
    began = time.thread_time()
    with pytest.raises(DeclarationError) as never:
        following(Cron.of("*/15 2 1 3 *"), odd, now)
    assert time.thread_time() - began < WITHIN
    assert (never.value.code, never.value.field) == ("MAGIK_SCHEDULE_NEVER", "cron")
    assert following(Cron.of("15 2 1 3 *"), odd, now) == datetime(2026, 3, 1, 2, tzinfo=UTC)
