"""``magik jobs list``: which jobs there are, and why they failed."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Final

import click

from ..acting import STATES, Listed, listed
from .chosen import choosing, filter_of, reaching
from .output import Answer, Command
from .tables import NOTHING, table
from .unmet import NONE, Unmet, unmet

COLUMNS: Final = ("id", "class", "queue", "state", "errors", "last error")
TIMES: Final = {"expired": ("expired at", "expired_at"), "finished": ("finished at", "finished_at")}

MORE: Final = "There are more; --limit shows them."
WHOLE: Final = "magik jobs show ID has the whole of an error."
OVER: Final = "due, or over since"


@click.command("list", cls=Command)
@choosing(STATES, limit=50)
def command(limit: int, database_url: str | None, **chosen: Any) -> Answer:
    """List jobs: live ones as workers will take them, then the latest dead letters; finished ones if asked for."""
    wanted = filter_of(**chosen)
    with reaching(database_url) as connection:
        with connection.begin():
            found = listed(connection, wanted, limit + 1)
        missed = None if found else unmet(connection, wanted, limit)
    more = len(found) > limit
    data = {"jobs": [vars(job) for job in found[:limit]], "more": more}
    if missed:
        return Answer(_missed(missed), data, 1)
    return Answer(partial(_told, found[:limit], more), data)


def _missed(missed: Unmet) -> str:
    return f"{NONE} In other states: {missed.counts}." if missed.others else missed.said()


def _told(jobs: list[Listed], more: bool) -> str:
    states = {job.state for job in jobs}
    when = (
        TIMES[min(states)][0]
        if len(states) == 1 and states <= {*TIMES}
        else "due"
        if states.isdisjoint(TIMES)
        else OVER
    )
    drawn = table((*COLUMNS[:4], when, *COLUMNS[4:]), map(_line, jobs), ("errors",), below=COLUMNS[-1])
    whole = WHOLE if sys.stdout.isatty() and any(job.why for job in jobs) else ""
    return "\n".join(filter(None, [drawn, whole, MORE if more else ""]))


def _line(job: Listed) -> tuple[Any, ...]:
    when = getattr(job, TIMES[job.state][1] if job.state in TIMES else "run_at")
    return job.id, job.job_class, job.queue, job.state, when, job.error_count, job.why or NOTHING
