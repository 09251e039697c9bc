"""The grammar of a cron: each line of the table in the docs, worked out by hand, and every form that is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import pytest

from magik_sa import DeclarationError, Schedule
from magik_sa.cron import NICKNAMES, Cron

START = datetime(2026, 1, 1, 12, 34, 56, tzinfo=UTC)  # a Thursday


def runs(cron: str, many: int = 10) -> list[str]:
    """The first runs after the start, as day and time; the year where it is another one."""
    schedule, found = Schedule(cron=cron, zone="UTC"), [START]
    for _ in range(many):
        found.append(schedule.next(found[-1], found[-1]))
    return [f"{tick:{'%m-%d' if tick.year == START.year else '%Y-%m-%d'}T%H:%M}" for tick in islice(found, 1, None)]


def days(cron: str, time: str = "00:00") -> list[str]:
    """The days of the first ten runs, all of which are at this time of the day."""
    found = runs(cron)
    assert {run.split("T")[1] for run in found} == {time}
    return [run.split("T")[0] for run in found]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        # either: the thirteenths, and the Fridays
        ("0 0 13 * 5", "01-02 01-09 01-13 01-16 01-23 01-30 02-06 02-13 02-20 02-27"),
        # either: the firsts, and the Sundays
        ("0 0 1 * 0", "01-04 01-11 01-18 01-25 02-01 02-08 02-15 02-22 03-01 03-08"),
        ("0 0 * * 7", "01-04 01-11 01-18 01-25 02-01 02-08 02-15 02-22 03-01 03-08"),
        ("0 0 * * sun", "01-04 01-11 01-18 01-25 02-01 02-08 02-15 02-22 03-01 03-08"),
        ("0 0 * * 6-7", "01-03 01-04 01-10 01-11 01-17 01-18 01-24 01-25 01-31 02-01"),
        ("0 0 * * MON-FRI", "01-02 01-05 01-06 01-07 01-08 01-09 01-12 01-13 01-14 01-15"),
        ("0 0 * * Mon-Fri/2", "01-02 01-05 01-07 01-09 01-12 01-14 01-16 01-19 01-21 01-23"),
        ("0 0 31 * *", "01-31 03-31 05-31 07-31 08-31 10-31 12-31 2027-01-31 2027-03-31 2027-05-31"),
        ("0 0 29 2 *", " ".join(f"{year}-02-29" for year in range(2028, 2066, 4))),
        (
            "0 0 1 JAN,jul *",
            "07-01 2027-01-01 2027-07-01 2028-01-01 2028-07-01 2029-01-01 2029-07-01 2030-01-01 2030-07-01 2031-01-01",
        ),
        ("@daily", "01-02 01-03 01-04 01-05 01-06 01-07 01-08 01-09 01-10 01-11"),
        # a star and a step restrict as well, and then a day has to fit both: odd days that are Mondays
        ("0 0 */2 * 1", "01-05 01-19 02-09 02-23 03-09 03-23 04-13 04-27 05-11 05-25"),
        # either field lets in every day of its own: every day of March
        ("0 0 5 3 1-7", "03-01 03-02 03-03 03-04 03-05 03-06 03-07 03-08 03-09 03-10"),
        ("0 0 1-31 3 1", "03-01 03-02 03-03 03-04 03-05 03-06 03-07 03-08 03-09 03-10"),
        ("  0\t0  1-31/10   1-3   *  ", "01-11 01-21 01-31 02-01 02-11 02-21 03-01 03-11 03-21 03-31"),
        ("00 00 05 03 01,02", "03-02 03-03 03-05 03-09 03-10 03-16 03-17 03-23 03-24 03-30"),
    ],
)  # fmt: skip
def test_days_are_those_that_the_table_says(cron: str, expected: str) -> None:
    assert days(cron) == expected.split()


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("* * 5 3 1-7", " ".join(f"03-01T00:{minute:02}" for minute in range(10))),
        # both, for the star: Sundays, Wednesdays and Saturdays from the 4th to the 28th
        (
            "*/25 */10 4-28 * */3",
            "01-04T00:00 01-04T00:25 01-04T00:50 01-04T10:00 01-04T10:25 01-04T10:50 01-04T20:00 01-04T20:25",
        ),
        ("0 9-17/4 * * *", "01-01T13:00 01-01T17:00 01-02T09:00 01-02T13:00 01-02T17:00 01-03T09:00 01-03T13:00"),
        ("5,10-12,40-50/5 12 * * *", "01-01T12:40 01-01T12:45 01-01T12:50 01-02T12:05 01-02T12:10 01-02T12:11"),
        ("*/7 * * * *", "01-01T12:35 01-01T12:42 01-01T12:49 01-01T12:56 01-01T13:00 01-01T13:07"),
        ("@hourly", "01-01T13:00 01-01T14:00 01-01T15:00"),
    ],
)
def test_times_are_those_that_the_table_says(cron: str, expected: str) -> None:
    assert runs(cron, len(expected.split())) == expected.split()


@pytest.mark.parametrize("nickname", NICKNAMES)
def test_a_nickname_is_the_cron_that_it_stands_for(nickname: str) -> None:
    assert runs(nickname, 3) == runs(NICKNAMES[nickname], 3) == runs(nickname.upper(), 3)
    assert Schedule(cron=nickname, zone="UTC").declaration() == {"cron": nickname, "zone": "UTC"}


def test_what_counts_elapsed_time_begins_with_a_star_in_minutes_or_hours() -> None:
    elapsing = [cron for cron in ("* 1 * * *", "1 */2 * * *", "*/5 1 * * *", "1 1 * * *", "0-59 0-23 * * *")
                if Cron.of(cron).elapses]  # fmt: skip
    assert elapsing == ["* 1 * * *", "1 */2 * * *", "*/5 1 * * *"]


REFUSED = {
    "": "five fields",
    "   ": "five fields",
    "* * * *": "five fields",
    "* * * * * *": "five fields",
    "0 0 0 * * * 2026": "five fields",
    "MON-FRI": "five fields",
    "@reboot": "five fields",
    "@every 10m": "five fields",
    "daily": "five fields",
    "0 0 * * ?": "day of week",
    "0 0 ? * 1": "day of month",
    "0 0 L * *": "day of month",
    "0 0 LW * *": "day of month",
    "0 0 15W * *": "day of month",
    "0 0 * * 5L": "day of week",
    "0 0 * * 5#3": "day of week",
    "H H * * *": "minute",
    "R R * * *": "minute",
    "H(0-10) 1 * * *": "minute",
    "R(0-10) 1 * * *": "minute",
    "~ * * * *": "minute",
    "0~30 * * * *": "minute",
    "60 * * * *": "0 to 59",
    "0 24 * * *": "0 to 23",
    "0 0 0 * *": "1 to 31",
    "0 0 32 * *": "1 to 31",
    "0 0 * 0 *": "1 to 12",
    "0 0 * 13 *": "1 to 12",
    "0 0 * * 8": "0 to 7",
    "0 0 * MON *": "month",
    "0 0 * * JAN": "day of week",
    "0 0 * MAI *": "month",
    "0 0 * * MONDAY": "day of week",
    "MON * * * *": "minute",
    "50-10 * * * *": "does not rise",
    "0 22-2 * * *": "does not rise",
    "0 0 * * FRI-MON": "does not rise",
    "0 0 * * SAT-SUN": "does not rise",
    "0 0 * NOV-FEB *": "does not rise",
    "5-5 * * * *": "does not rise",
    "5/15 * * * *": "minute",
    "/15 * * * *": "minute",
    "*/0 * * * *": "step of 0",
    "*/60 * * * *": "step of 60",
    "*/90 * * * *": "step of 90",
    "0 */24 * * *": "step of 24",
    "10-20/15 * * * *": "step of 15",
    "*/5/2 * * * *": "minute",
    "*,5 * * * *": "minute",
    "*/10,5 * * * *": "minute",
    "*-5 * * * *": "minute",
    "1,,2 * * * *": "minute",
    ",1 * * * *": "minute",
    "1, * * * *": "minute",
    "1-2-3 * * * *": "minute",
    "-1 * * * *": "minute",
    "+1 * * * *": "minute",
    "1.5 * * * *": "minute",
    "005 * * * *": "minute",
    "\u0661 * * * *": "ASCII",  # a digit, but none of ours
    "0 0 * * FR\u0131": "ASCII",  # whose capital is FRI
    "@wee\u212aly": "ASCII",
    "1;2 * * * *": "minute",
    "** * * * *": "minute",
    "%s * * * *": "minute",
}  # fmt: skip


@pytest.mark.parametrize("cron", REFUSED)
def test_what_the_grammar_does_not_define_is_refused(cron: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        Schedule(cron=cron, zone="UTC")
    assert (refused.value.code, refused.value.field) == ("MAGIK_SCHEDULE_CRON_INVALID", "cron")
    assert REFUSED[cron] in refused.value.what
    assert repr(cron) in refused.value.what


@pytest.mark.parametrize("cron", [5, b"* * * * *", ["*"] * 5])
def test_what_is_no_text_is_refused(cron: object) -> None:
    with pytest.raises(DeclarationError) as refused:
        Schedule(cron=cron, zone="UTC")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert (refused.value.code, refused.value.field) == ("MAGIK_SCHEDULE_CRON_INVALID", "cron")


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 30,31 2 *", "0 0 31 4,6,9,11 *", "0 0 31 NOV */2"])
def test_a_day_that_no_month_has_is_refused(cron: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        Schedule(cron=cron, zone="UTC")
    assert (refused.value.code, refused.value.field) == ("MAGIK_SCHEDULE_NEVER", "cron")


def test_a_day_that_no_month_has_does_no_harm_beside_a_day_of_the_week() -> None:
    sundays = "02-01 02-08 02-15 02-22 2027-02-07 2027-02-14 2027-02-21 2027-02-28 2028-02-06 2028-02-13"
    assert days("0 0 30 2 SUN") == sundays.split()
