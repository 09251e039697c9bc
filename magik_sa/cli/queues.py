"""``magik queues``: what there is in each, and which are paused."""

from __future__ import annotations

from dataclasses import asdict

import click

from ..pausing import pause_queue, resume_queue
from ..status import status
from .changing import BY, UNKEPT, changed, somebody
from .connect import URL, asked
from .late import Listed
from .output import Answer, Command
from .status import queues_told, unknown_told


@click.group("queues", cls=Listed)
def command() -> None:
    """List queues, pause and resume them. Without a command: list."""


@command.command("list", cls=Command)
@URL
def listing(database_url: str | None) -> Answer:
    """Every queue with its figures, as `magik jobs status` has them."""
    found = asked(database_url, "queues", status)
    told = [queues_told(found.queues), *unknown_told(found.unknown)]
    data = asdict(found)
    return Answer("\n\n".join(told), {"queues": data["queues"], "unknown": data["unknown"]})


@command.command("pause", cls=Command)
@click.argument("name")
@click.option("--by", help="who wants it so; the user of this machine if not given")
@click.option("--create", is_flag=True, help="a queue that nothing knows yet, too")
@URL
def pause(name: str, by: str | None, create: bool, database_url: str | None) -> Answer:
    """Let no job of a queue begin; what runs goes on, and jobs can be added."""
    said = ("is paused: no job of it begins", "was paused already")
    return changed(
        database_url, "queue", name, lambda c: pause_queue(c, name, by or somebody(), create=create), said, paused=True
    )


@command.command("resume", cls=Command)
@click.argument("name")
@BY
@URL
def resume(name: str, by: str | None, database_url: str | None) -> Answer:
    """Let its jobs begin again."""
    said = (f"is resumed{UNKEPT if by else ''}", "was not paused")
    return changed(database_url, "queue", name, lambda c: resume_queue(c, name), said, paused=False)
