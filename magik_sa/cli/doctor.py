"""``magik doctor``: what is wrong with the database under the queue, and what mends it.

0  nothing above a note (what is unknown does not count)
1  a warning
2  refused: it could not be examined
3  something critical
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import click
from psycopg.conninfo import make_conninfo

from ..asking import Asking
from ..doctor import Finding, Limits, Severity, Subject, examine, ranked, worst
from ..doctor.outgrown import outgrown as signals
from ..doctor.probe import probe as measure
from ..duration import duration
from ..errors import BootError, DeclarationError
from ..harmless import harmless
from ..settings import read
from ..url import conninfo
from .connect import URL, connected
from .output import Answer, Command
from .tables import rendered_text

NAME: Final = "magik_sa doctor"  # of each of its sessions, in pg_stat_activity
CODES: Final = {Severity.WARNING: 1, Severity.CRITICAL: 3}
SECONDS: Final = 15.0  # for all questions together
STYLES: Final = {
    Severity.CRITICAL: "bold red",
    Severity.WARNING: "yellow",
    Severity.UNKNOWN: "magenta",
    Severity.NOTE: "cyan",
    Severity.OK: "green",
}


def _span(ctx: click.Context, option: click.Parameter, value: str | None) -> timedelta | None:  # noqa: ARG001
    try:
        return None if value is None else duration(value, field=option.opts[0])
    except DeclarationError as error:
        raise BootError("MAGIK_SETTING_INVALID", error.what, field=option.opts[0], remedy=error.remedy) from None


@click.command("doctor", cls=Command)
@click.option("--oldest-transaction", callback=_span, help="the age from which a transaction is a warning [5m]")
@click.option("--blocked", callback=_span, help="how long somebody may wait for a job's row [5s]")
@click.option(
    "--probe",
    type=click.IntRange(1, 64),
    is_flag=False,
    flag_value=8,
    help="instead: how threads of this interpreter get on with one another [8]",
)
@click.option("--outgrown", is_flag=True, help="instead: three seconds' look for signs that this server is straining")
@click.option("--locking-url", help="where the locks are held, if --database-url goes through a pooler")
@URL
def command(
    database_url: str | None,
    locking_url: str | None,
    probe: int | None,
    outgrown: bool,
    **limits: timedelta | None,
) -> Answer:
    """What is wrong with the database under the queue, or will be, and what mends it."""
    told = read({"database_url": database_url, "locking_url": locking_url})
    if probe and outgrown:
        raise BootError("MAGIK_SETTING_INVALID", "--probe and --outgrown are two questions.", field="probe")
    with connected(told.database_url, "doctor") as connection:
        if probe:
            return _answer(measure(_named(told.database_url), probe))
        given = {name: value for name, value in limits.items() if value is not None}
        locking = _named(told.locking_url or told.database_url)
        subject = Subject(Asking(connection, SECONDS), locking, Limits(**given))  # type: ignore[arg-type]
        return _answer(ranked(signals(subject)) if outgrown else examine(subject))


def _named(url: str | None) -> str:
    return make_conninfo(conninfo(url or ""), application_name=NAME)


def _answer(found: list[Finding]) -> Answer:
    severity = worst(found)
    data = {"worst": severity.value, "findings": [_data(finding) for finding in found]}
    return Answer("\n".join(line for finding in found for line in _lines(finding)), data, CODES.get(severity, 0))


def _data(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "severity": finding.severity.value}


def _lines(finding: Finding) -> Iterator[str]:
    """One line for what was found, and below it, where there is something to do, why and what."""
    label = rendered_text(f"{finding.severity.value:<9}", STYLES[finding.severity])
    yield f"{label} {finding.name}: {harmless(finding.said)}"
    for word in ("cause", "remedy"):
        if said := getattr(finding, word):
            yield f"          {word}: {harmless(said)}"
    for statement in finding.sql:
        yield from (f"              {harmless(line)}" for line in f"{statement};".splitlines())
