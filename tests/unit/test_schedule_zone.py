"""Zones by name: what is accepted, what is refused and with which hint, and a machine that has none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from magik_sa import DeclarationError, Schedule

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "zone", ["Europe/Paris", "UTC", "Etc/UTC", "GMT", "Zulu", "US/Eastern", "EST5EDT", "Etc/GMT-2", "Asia/Calcutta"]
)
def test_every_name_of_the_database_is_accepted_old_ones_too(zone: str) -> None:
    assert Schedule(cron="0 3 * * *", zone=zone).declaration() == {"cron": "0 3 * * *", "zone": zone}


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("America/New_Yrok", "did you mean America/New_York?"),
        ("utc", "did you mean UTC?"),
        ("europe/paris", "did you mean Europe/Paris?"),
        ("EST5", "no such zone"),
        ("+02:00", "no such zone"),
        ("UTC+2", "no such zone"),
        ("Paris", "no such zone"),
        (" ", "no such zone"),
        ("America", "no such zone"),
        ("right/Europe/Paris", "no such zone"),
        ("posix/Europe/Paris", "no such zone"),
        ("localtime", "no such zone"),
        ("../zoneinfo/UTC", "no such zone"),
        ("/etc/localtime", "no such zone"),
        ("tzdata.zi", "no such zone"),
        ("zone\0", "no such zone"),
        ("x" * 5000, "no such zone"),
        ("Európa/Párizs", "no such zone"),
        (5, "no such zone"),
    ],
)
def test_an_unknown_zone_is_refused_by_its_name(zone: str, hint: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        Schedule(cron="0 3 * * *", zone=zone)
    assert (refused.value.code, refused.value.field) == ("MAGIK_SCHEDULE_ZONE_UNKNOWN", "zone")
    assert hint in refused.value.what
    assert repr(zone) in refused.value.what
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("zone", [None, ""])
def test_a_cron_without_a_zone_is_refused(zone: str | None) -> None:
    with pytest.raises(DeclarationError) as refused:
        Schedule(cron="0 3 * * *", zone=zone)
    assert (refused.value.code, refused.value.field) == ("MAGIK_SCHEDULE_ZONE_MISSING", "zone")
    assert 'zone="Europe/Paris"' in refused.value.remedy


BARE = """
import sys
sys.modules["tzdata"] = None
from magik_sa import DeclarationError, Schedule
print(Schedule(cron="0 3 * * *", zone="UTC").declaration())
try:
    Schedule(cron="0 3 * * *", zone="Europe/Paris")
except DeclarationError as refused:
    print(refused)
"""


def test_a_machine_without_time_zones_is_told_what_to_install_and_has_utc() -> None:
    environment = {**os.environ, "PYTHONTZPATH": "", "PYTHONPATH": str(ROOT)}
    told = subprocess.run([sys.executable, "-c", BARE], env=environment, capture_output=True, text=True, check=True)
    utc, refused = told.stdout.splitlines()
    assert utc == "{'cron': '0 3 * * *', 'zone': 'UTC'}"
    assert refused.startswith(
        "MAGIK_SCHEDULE_ZONE_UNKNOWN: zone='Europe/Paris': there are no time zones on this machine."
    )
    assert "package tzdata" in refused
