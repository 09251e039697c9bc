"""How long a schedule that failed is left alone."""

from __future__ import annotations

import re

import pytest
from sqlalchemy.orm import Session

from magik_sa import Job, Retries, Schedule
from magik_sa.errors import JobTimeout
from magik_sa.ticks import Tick
from magik_sa.timetable import timetable
from magik_sa.worker.rest import Rests


class Brief(Job, policy="system", name="rest.Brief"):
    """Its limit is two seconds."""

    retries = Retries(timeout="2s")
    schedule = Schedule(every="1h")

    def perform(self, session: Session) -> None:
        """Does nothing."""


class Usual(Job, policy="system", name="rest.Usual"):
    """Its limit is that of all."""

    schedule = Schedule(every="1h")

    def perform(self, session: Session) -> None:
        """Does nothing."""


OVER = JobTimeout("MAGIK_JOB_TIMEOUT", "It lasted longer.")


@pytest.mark.parametrize(
    ("cls", "errors", "pauses"),
    [
        (Brief, [ValueError()] * 8, [1, 2, 4, 8, 16, 32, 60, 60]),
        (Brief, [OVER] * 3, [20, 40, 60]),
        (Usual, [OVER] * 3, [300, 300, 300]),
        (Usual, [OVER, ValueError(), OVER], [300, 60, 300]),
    ],
    ids=["failed", "over a short limit", "over its limit", "in turns"],
)
def test_a_schedule_rests_longer_from_try_to_try_and_ten_times_its_limit_when_it_was_over_it(
    cls: type[Job], errors: list[Exception], pauses: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    (entry,) = timetable({cls.__magik__.name: cls}).values()
    tick, rests = Tick(entry, "1000.5", "1001"), Rests()
    for error in errors:
        rests.begin(entry, error, tick)
    assert [float(pause) for pause in re.findall(r"next_try_s=(\S+)", caplog.text)] == pauses
    assert not rests.over(tick)
    assert rests.over(tick._replace(at="2000.5"))
