"""``magik check``: everything that a worker's start checks and that needs no database, for continuous integration.

0  nothing stands against a start (there may be warnings: of a queue that no class has, and with --scale)
2  refused: one line for each finding, all at once
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

import click

from ..boot import check_code
from ..errors import BootRefused, MagikError
from ..harmless import harmless, word
from ..job import Job, declared
from ..meant import near
from ..scale import warnings
from ..sessions import check_sessions, find
from ..settings import Settings, read
from ..timetable import timetable
from ..url import conninfo, parse
from .output import Answer, Command

WHY: Final = (
    "A worker of it has nothing to do, unless jobs are put there one by one (queue=… where a job is built)."
    " Write the queue as the header of its classes has it."
)


@click.command("check", cls=Command)
@click.argument("modules", nargs=-1)
@click.option("--session", help="package.module:attribute of the application's sessionmaker or scoped_session")
@click.option("--queue", "queues", multiple=True, help="a queue that a worker is to work; may be repeated")
@click.option("--scale", is_flag=True, help="warn of four shapes that work and do not scale; never refuses")
def command(scale: bool, **options: Any) -> Answer:
    """Check what MODULES declare as a worker does when it starts. Needs no database."""
    told = read({name: value for name, value in options.items() if value != ()})
    findings = check_code(told)
    findings += check_ways(told)
    if findings:
        raise BootRefused(findings)
    jobs = declared()
    warned = [*queues_of_nobody(told, jobs)]
    for each in warnings(jobs) if scale else []:
        warned.append(asdict(each))
        del warned[-1]["silenced"]
    data = {
        "jobs": sorted(jobs),
        "queues": sorted({cls.__magik__.queue for cls in jobs.values()}),
        "schedules": sorted(timetable(jobs)),
        "warnings": warned,
    }
    return Answer("\n".join(lines(data)), data)


def check_ways(told: Settings) -> Iterator[MagikError]:
    """The Sessions, and what URLs there are, as far as nobody has to be connected to."""
    threads = told.concurrency + bool(timetable(declared()))
    try:
        for url in filter(None, (told.database_url, told.locking_url)):
            conninfo(parse(url))
        if told.session:
            yield from check_sessions(find(told, None, threads), threads)
    except MagikError as error:
        yield error


def queues_of_nobody(told: Settings, jobs: Mapping[str, type[Job]]) -> Iterator[dict[str, Any]]:
    """Those that were given and that no class has: a slip, or else a queue for jobs that say so one by one."""
    known = {cls.__magik__.queue for cls in jobs.values()}
    for queue in told.queues if "queues" in told.model_fields_set else ():
        if queue not in known:
            said = f"no job class here has this queue{near(queue, known)}".rstrip(".")
            yield {"shape": "queue", "where": f"--queue {word(queue)}", "job": None, "said": said, "why": WHY}


def lines(data: dict[str, Any]) -> Iterator[str]:
    """Three for each warning, and one for all that there is."""
    for each in data["warnings"]:
        job = "" if each["job"] is None else f"{each['job']}: "
        end = "" if each["said"].endswith("?") else "."
        yield harmless(f"{each['where']}: warning[{each['shape']}]: {job}{each['said']}{end}")
        cause, _, remedy = each["why"].rpartition(". ")
        yield harmless(f"    cause: {cause}.")
        meant = f" If it is meant: # magik: ignore[{each['shape']}]" if job else ""
        yield harmless(f"    remedy: {remedy}{meant}")
    names = ("jobs", "queues", "schedules", *(["warnings"] if data["warnings"] else []))
    counts = [f"{name}: {len(data[name])}" for name in names]
    yield f"{', '.join(counts)}. Nothing stands against a start, as far as it shows without a database."
