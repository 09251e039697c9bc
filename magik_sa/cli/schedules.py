"""``magik schedules``: when each is due next, paused, resumed, and fired once at once."""

from __future__ import annotations

from dataclasses import asdict

import click
from sqlalchemy import Connection

from .. import recurring
from ..errors import BootError
from ..status import status
from ..status.at_work import at_work
from .changing import BY, UNKEPT, changed, somebody
from .connect import URL, asked
from .late import Listed
from .output import Answer, Command
from .status import schedules_told, unknown_told


@click.group("schedules", cls=Listed)
def command() -> None:
    """List schedules, pause and resume them, fire one. Without a command: list."""


@command.command("list", cls=Command)
@URL
def listing(database_url: str | None) -> Answer:
    """Every schedule with its last and its next tick."""
    found = asked(database_url, "schedules", status)
    listed = "No schedules; a worker writes those of its classes when it starts."
    told = [listed if found.schedules == [] else schedules_told(found.schedules), *unknown_told(found.unknown)]
    data = asdict(found)
    return Answer("\n\n".join(told), {"schedules": data["schedules"], "unknown": data["unknown"]})


@command.command("pause", cls=Command)
@click.argument("name")
@click.option("--by", help="who wants it so; the user of this machine if not given")
@URL
def pause(name: str, by: str | None, database_url: str | None) -> Answer:
    """Let no tick of a schedule fire."""
    said = ("is paused", "was paused already")
    return changed(
        database_url, "schedule", name, lambda c: recurring.pause(c, name, by or somebody()), said, paused=True
    )


@command.command("resume", cls=Command)
@click.argument("name")
@BY
@URL
def resume(name: str, by: str | None, database_url: str | None) -> Answer:
    """Let its ticks fire again; those that were due meanwhile are left out."""
    said = (f"is resumed{UNKEPT if by else ''}", "was not paused")
    return changed(database_url, "schedule", name, lambda c: recurring.resume(c, name), said, paused=False)


@command.command("run", cls=Command)
@click.argument("name")
@URL
def run(name: str, database_url: str | None) -> Answer:
    """Move the next tick of a schedule to now: some worker fires it, once."""

    def move(connection: Connection) -> bool:
        moved = recurring.run_now(connection, name)  # or it says that there is no such schedule, or that it is paused
        if asked(database_url, "schedules", at_work).workers == []:
            raise BootError("MAGIK_NO_WORKER", "No worker is alive that could fire it; nothing was changed.")
        return moved

    return changed(database_url, "schedule", name, move, ("is due now", "was due already"), due=True)
