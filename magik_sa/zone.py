"""Time zones by their names in the IANA database, told apart from what only looks like one."""

from __future__ import annotations

from datetime import UTC, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from .errors import DeclarationError
from .meant import meant

OF_THE_MACHINE: Final = (
    "localtime",
    "posixrules",
    "Factory",
)  # in the database's folder, and different on each machine
OTHER_COUNTS: Final = ("posix/", "right/")  # copies of all zones; those of right/ count leap seconds
_INSTALL: Final = "Install the operating system's package tzdata, or the Python package of the same name."


def zone(name: object) -> tzinfo:
    """The zone of this name, letter for letter. ``UTC`` needs no database.

    Raises `DeclarationError` ``MAGIK_SCHEDULE_ZONE_UNKNOWN`` for one that the machine does not know; where it knows
    none, the remedy is what to install.
    """
    if name == "UTC":
        return UTC
    found = _looked_up(name) if isinstance(name, str) else None
    if found is None:
        raise _unknown(name)
    return found


def _looked_up(name: str) -> tzinfo | None:
    if name in OF_THE_MACHINE or name.startswith(OTHER_COUNTS):
        return None
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # no such file, no such path, a folder
        return None


def _unknown(name: object) -> DeclarationError:
    known = available_timezones()
    if not known:
        what = f"zone={name!r}: there are no time zones on this machine."
        return DeclarationError("MAGIK_SCHEDULE_ZONE_UNKNOWN", what, field="zone", remedy=_INSTALL)
    near = _meant(str(name), sorted(known))
    what = f"zone={name!r}: there is no such zone" + (f"; did you mean {near}?" if near else ".")
    return DeclarationError("MAGIK_SCHEDULE_ZONE_UNKNOWN", what, field="zone")


def _meant(name: str, known: list[str]) -> str | None:
    by_case = {each.casefold(): each for each in known}
    near = meant(name.casefold(), by_case, 1, 0.75)
    return by_case[near[0]] if near else None
