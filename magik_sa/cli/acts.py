"""``magik jobs retry``, ``discard``, ``cancel`` and ``run-now``: count first, ask, then act on what was counted.

What fails, changes or is added after the count is spared. Exit codes: 0 all of them done; 1 some were left out, nothing
matched, or the answer was no; 2 refused, and nothing was changed (or nothing more: batches are committed one by one).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

import click
from sqlalchemy import Connection

from .. import acting
from ..acting import MOST, Done, Filter, Seen, batches, drawn
from ..errors import BootError
from ..grants import Needs
from ..harmless import harmless
from .changing import somebody
from .chosen import CHANGING, DELETING, choosing, filter_of, reaching
from .output import Answer, Command, note
from .status import resuming
from .unmet import going_on, gone, paused, unmet

LEFT_OUT: Final = 1
SHOWN: Final = 10  # of the jobs that were left out, and of the kinds that are counted
WHY: Final = {
    "gone": "gone: ended, cancelled, or never there",
    "changed": "changed since they were counted",
    "state": "not in a state for it",
    "running": "still running in a worker",
    "busy": "held by another transaction (magik doctor says whose): try again",
    "key_taken": "a live job has their key",
    "refused": "refused by a constraint, a trigger or a policy of the table",
}


@dataclass(frozen=True)
class Verb:
    """How one act is said, which states it is for, and which are meant where none is named."""

    name: str
    past: str
    states: Sequence[str]
    otherwise: Sequence[str]
    needs: Needs = CHANGING
    begins: bool = False  # what it is done to is due, and waits for nothing but a worker
    spares_failed: bool = False  # those that have failed are meant only where they are named

    def chosen(self, states: Sequence[str], ids: Sequence[UUID], **chosen: Any) -> Filter:
        """The filter, with the states that are meant where none are named."""
        spared = self.spares_failed and not ids and "errored" not in states
        return filter_of(ids, states, otherwise=self.otherwise, unfailed=spared, **chosen)


LIVE: Final = ("ready", "running", "scheduled", "errored")
RETRY: Final = Verb("retry", "retried", ("expired", "errored"), ("expired", "errored"), begins=True)
RUN_NOW: Final = Verb("run_now", "made due", ("scheduled", "errored"), ("scheduled",), begins=True, spares_failed=True)
CANCEL: Final = Verb("cancel", "cancelled", (*LIVE, "expired"), LIVE, DELETING)
DISCARD: Final = Verb("discard", "discarded", LIVE, LIVE)

ALL = click.option("--all", "everything", is_flag=True, help="all of them, where nothing else is said")
YES = click.option("--yes", is_flag=True, help="do not ask; for scripts")
DRY = click.option("--dry-run", is_flag=True, help="count, and change nothing")


def _acting(verb: Verb) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options that every act has."""

    def optioned(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in (choosing(verb.states, limit=MOST), DRY, YES, ALL):
            function = option(function)
        return function

    return optioned


@click.command("retry", cls=Command)
@_acting(RETRY)
def retry(**options: Any) -> Answer:
    """Run dead letters and failing jobs again, at once and with all their tries."""
    return _run(RETRY, acting.retry, **options)


@click.command("run-now", cls=Command)
@_acting(RUN_NOW)
def run_now(**options: Any) -> Answer:
    """Make scheduled jobs due; with --state errored, those that wait after a failure."""
    return _run(RUN_NOW, acting.run_now, **options)


@click.command("cancel", cls=Command)
@_acting(CANCEL)
def cancel(**options: Any) -> Answer:
    """Delete jobs. One that runs goes on to its end, and what it wrote through its Session rolls back there."""
    return _run(CANCEL, acting.cancel, **options)


@click.command("discard", cls=Command)
@_acting(DISCARD)
@click.option("--why", required=True, help="what to write down as the reason")
@click.option("--by", help="who wants it so [the user of the machine]")
def discard(why: str, by: str | None, **options: Any) -> Answer:
    """Make live jobs dead letters, with a reason. One that runs goes on to its end, and its work rolls back there."""
    by = by or somebody()
    acting.reason(why, by)  # refused before anything is counted
    return _run(DISCARD, partial(acting.discard, why=why, by=by), **options)


def _run(
    verb: Verb,
    act: Callable[..., Done],
    *,
    everything: bool,
    yes: bool,
    dry_run: bool,
    limit: int,
    database_url: str | None,
    **chosen: Any,
) -> Answer:
    wanted = filter_of(**chosen)
    if wanted.open and not everything:
        what = "Nothing says which jobs are meant."
        raise BootError("MAGIK_SETTING_INVALID", what, remedy="Name ids, --class, --queue, --state, … or say --all.")
    with reaching(database_url, verb.needs) as connection:
        seen = _count(connection, verb.chosen(**chosen), limit + 1)
        more, seen = len(seen) > limit, seen[:limit]
        done = Done(left={} if more else gone(connection, chosen["ids"], seen))
        if not seen:
            missed = unmet(connection, verb.chosen(**chosen), limit)
            return _answer(verb, seen, more, done, missed.said(verb.states), code=LEFT_OUT, others=dict(missed.others))
        told = f"{_jobs(len(seen))} would be {verb.past}: {_kinds(seen)}."
        if dry_run:
            told = "\n".join([told, *_left(done)])
            return _answer(verb, seen, more, done, told, code=LEFT_OUT if done.left else 0)
        if not (yes or len(chosen["ids"]) == 1 or _agreed(told)):
            return _answer(verb, seen, more, done, "Nothing was changed.", code=LEFT_OUT)
        _each_batch(connection, act, seen, done)
        where = going_on(connection, done.ran)
        stopped = _stopped(connection, seen, done) if verb.begins else []
    told = "\n".join(_lines(verb, done, more, where, stopped))
    return _answer(verb, seen, more, done, told, code=LEFT_OUT if done.left else 0, paused=stopped)


def _count(connection: Connection, wanted: Filter, limit: int) -> list[Seen]:
    with connection.begin():
        return drawn(connection, wanted, limit)


def _agreed(told: str) -> bool:
    """Ask. Where nobody can be asked, `--yes` has to be said."""
    if not sys.stdin.isatty():
        raise BootError("MAGIK_ACT_UNCONFIRMED", told)
    note(told)
    return click.confirm("Go on?", err=True)


def _each_batch(connection: Connection, act: Callable[..., Done], seen: Sequence[Seen], total: Done) -> None:
    """A transaction each. An interruption leaves done what is done."""
    drawn_batches = [*batches({job.id: job.version for job in seen})]
    try:
        for batch in _shown(drawn_batches):
            with connection.begin():
                done = act(connection, batch)
            total.done += done.done
            total.ran += done.ran
            total.left |= done.left
    except BaseException:
        note(f"broken off: of {_jobs(len(seen))} {len(total.done):,} are done for certain.")
        raise


def _stopped(connection: Connection, seen: Sequence[Seen], done: Done) -> list[str]:
    """The paused queues of what was done."""
    ids = {*done.done}
    return sorted(paused(connection, {job.queue for job in seen if job.id in ids})) if ids else []


def _shown(steps: Sequence[Any]) -> Iterable[Any]:
    """With a bar, where it takes more than one and somebody watches."""
    if len(steps) < 2 or not sys.stderr.isatty():
        return steps
    from rich.console import Console
    from rich.progress import track

    return track(steps, "", console=Console(stderr=True), transient=True)


def _answer(
    verb: Verb, seen: Sequence[Seen], more: bool, done: Done, told: str, *, code: int, **besides: object
) -> Answer:
    left = [{"id": each, **why._asdict()} for each, why in done.left.items()]
    data = {"act": verb.name, "matched": len(seen), "more": more, "done": done.done, "ran": done.ran, "left": left}
    return Answer(told, {**data, **besides}, code)


def _lines(verb: Verb, done: Done, more: bool, where: Sequence[str], stopped: Sequence[str]) -> Iterator[str]:
    yield f"{_jobs(len(done.done))} {verb.past}."
    if done.ran:
        yield _still(len(done.ran), where)
    for queue in stopped:
        yield harmless(f"The queue {queue} is paused; its jobs begin when it is resumed: {resuming(queue)}")
    yield from _left(done)
    if more:
        yield "There are more that match: say it again for the rest."


def _left(done: Done) -> Iterator[str]:
    if done.left:
        yield f"{_jobs(len(done.left))} left out:"
        yield from (f"  {n:,} {WHY[why]}" for why, n in Counter(left.why for left in done.left.values()).most_common())
        first = [*done.left.items()][:SHOWN]
        yield from (f"  {each}: {harmless(left.detail or WHY[left.why])}" for each, left in first)


def _still(n: int, where: Sequence[str]) -> str:
    """How many go on, in which workers, and what there is to do about one that never ends."""
    runs = ", ".join(where[:SHOWN]) or "a worker (magik workers says which)"
    still = f"{n:,} of them still {'runs' if n == 1 else 'run'} in {harmless(runs)}"
    it, they = ("it writes", "it ends") if n == 1 else ("they write", "they end")
    return f"{still}: what {it} rolls back when {they}. If {'it does' if n == 1 else 'they do'} not, end that worker."


def _kinds(seen: Sequence[Seen]) -> str:
    """As in: 10 SettleBatch in payments, 2 Notify in notices; and how many of them run."""
    kinds = Counter((job.job_class, job.queue) for job in seen).most_common()
    named = [harmless(f"{n:,} {job_class} in {queue}") for (job_class, queue), n in kinds[:SHOWN]]
    others = [f"{sum(n for _, n in kinds[SHOWN:]):,} of other kinds"] if kinds[SHOWN:] else []
    running = sum(job.state == "running" for job in seen)
    return ", ".join(named + others) + (f"; {running:,} still running in a worker" if running else "")


def _jobs(n: int) -> str:
    return "1 job" if n == 1 else f"{n:,} jobs"
