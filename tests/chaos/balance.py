"""The balance: what producers asked for, what the database committed, and what jobs did, side by side.

Pure functions of the record, the books and the faults, so that they can be asked about a record that was doctored.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Final
from uuid import UUID

from tests.jobs.money import ACCOUNTS, OPENING

from .books import Books, Enqueued
from .jobs import GIVEN_UP
from .producer import payment
from .record import Line

SHOWN: Final = 5  # of the jobs of one kind of fault


@dataclass
class Imbalance:
    """What must be nothing, each with the jobs that it is about, and a sentence of what is wrong with each."""

    lost: dict[str, str] = field(default_factory=dict)
    doubled: dict[str, str] = field(default_factory=dict)
    unasked: dict[str, str] = field(default_factory=dict)  # exists although nothing was committed
    ticks: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)  # locks, notes, rows, connections, workers that ended badly

    def kinds(self) -> Mapping[str, dict[str, str]]:
        """By their names."""
        return vars(self)

    def __bool__(self) -> bool:
        return any(self.kinds().values())

    def lines(self) -> Iterator[str]:
        """A few of each."""
        for kind, found in self.kinds().items():
            for what, why in list(found.items())[:SHOWN]:
                yield f"{kind}: {what} {why}"
            if len(found) > SHOWN:
                yield f"{kind}: … and {len(found) - SHOWN} more"


def balance(record: Iterable[Line], books: Books) -> Imbalance:
    """Hold the record and the books against each other."""
    lines, found = list(record), Imbalance()
    _asked(lines, books, found)
    _effects(lines, books, found)
    _entries(books, found)
    _money(lines, books, found)
    _chains(books, found)
    _keys(books, found)
    _ticks(books, found)
    return found


def _ids(lines: Iterable[Line], what: str) -> set[UUID]:
    return {line.job for line in lines if line.what == what}


def _parts(job: Enqueued) -> set[int]:
    return set(range(job.args["parts"])) if job.job_class == "Long" else {0}


def _asked(lines: list[Line], books: Books, found: Imbalance) -> None:
    """A job exists if, and only if, its transaction and its savepoint committed."""
    there = {job.id for job in books.enqueued}
    for id in _ids(lines, "committed") - there:
        found.lost[str(id)] = "was committed, and the database has never had it"
    for id in (_ids(lines, "undone") | _ids(lines, "repeat")) & there:
        found.unasked[str(id)] = "was rolled back or a repeat, and became a job"
    for id in _ids(lines, "start") - there:
        found.unasked[str(id)] = "ran without having been committed"


def _effects(lines: list[Line], books: Books, found: Imbalance) -> None:
    """Each job has done all that it does outside, or is a dead letter that says why."""
    done = {(line.job, line.chunk) for line in lines if line.what == "effect"}
    for job in books.enqueued:
        name = f"{job.job_class} {job.id}"
        if job.id in books.live:
            found.lost[name] = "is still live at the end"
        elif job.id in books.dead:
            if job.job_class != "Doomed" or not books.dead[job.id]:
                found.lost[name] = f"is a dead letter: {books.dead[job.id][:100]!r}"
        elif job.job_class == "Doomed":
            found.lost[name] = "is gone, and no dead letter"
        elif missing := sorted(part for part in _parts(job) if (job.id, part) not in done):
            found.lost[name] = f"has ended without the effects {missing}"


def _entries(books: Books, found: Imbalance) -> None:
    """What is written through the Session is there once: by jobs that ended well all of it, by others nothing."""
    expected: dict[tuple[UUID, int], str] = {}
    for job in books.enqueued:
        if job.job_class not in {"Mail", "Payment", "Doomed"} and job.id not in books.live:
            expected |= {(job.id, part): job.job_class for part in _parts(job)}
        if job.job_class == "Doomed":
            expected |= {(job.id, GIVEN_UP): ""}  # on_failure: at most once
    for (id, part), cls in expected.items():
        count = books.entries[id, part]
        if count > 1:
            found.doubled[f"{cls} {id} part {part}"] = f"was written {count} times"
        elif cls and not count:
            found.lost[f"{cls} {id} part {part}"] = "was not written"
    for id, part in books.entries.keys() - expected.keys():
        found.doubled[f"{id} part {part}"] = "was written by a run that did not end"


def _money(lines: list[Line], books: Books, found: Imbalance) -> None:
    """Each payment that was asked for is booked once, and every cent is in its place."""
    numbers = {job.args["number"] for job in books.enqueued if job.job_class == "Payment"}
    for number in numbers - books.bookings.keys():
        found.lost[f"payment {number}"] = "was not booked"
    for number, count in books.bookings.items():
        if count > 1 or number not in numbers:
            found.doubled[f"payment {number}"] = f"was booked {count} times"
    expected = _balances(numbers)
    for account, cents in books.accounts.items():
        if cents != expected[account]:
            found.doubled[f"account {account}"] = f"has {cents}, and should have {expected[account]}"


def _balances(numbers: Iterable[int]) -> dict[int, Decimal]:
    balances = dict.fromkeys(range(ACCOUNTS), OPENING)
    for each in map(payment, numbers):
        balances[each.source] -= each.amount
        balances[each.target] += each.amount
    return balances


def _chains(books: Books, found: Imbalance) -> None:
    """A job that adds the next of its own key adds it once."""
    steps: dict[str, Counter[int]] = defaultdict(Counter)
    last: dict[str, int] = {}
    for job in books.enqueued:
        if job.job_class == "Chain":
            steps[job.args["name"]][job.args["step"]] += 1
            last[job.args["name"]] = job.args["last"]
    for name, made in steps.items():
        for step in range(last[name] + 1):
            if made[step] > 1:
                found.doubled[f"chain {name} step {step}"] = f"was added {made[step]} times"
            if not made[step]:
                found.lost[f"chain {name} step {step}"] = "was not added"


def _keys(books: Books, found: Imbalance) -> None:
    """Of one class and key there is one live job at a time. (A successor is added in the commit that ends the one.)"""
    ends, lives = dict(books.ended), defaultdict(list)
    for job in books.enqueued:
        if job.key is not None and job.id in ends:
            lives[job.job_class, job.key].append((job.at, ends[job.id], job.id))
    for (cls, _), spans in lives.items():
        spans.sort()
        for (_, end, one), (begin, _, other) in pairwise(spans):
            if begin < end:
                found.doubled[f"{cls} {one} and {other}"] = "of one key were live at once"


def _ticks(books: Books, found: Imbalance) -> None:
    """Each tick of a schedule made one job, each such job has its tick, and each tick is the one that was to follow."""
    made = Counter(job.transaction for job in books.enqueued if job.job_class == "Tick")
    claimed = Counter((each.schedule, each.tick) for each in books.ticks)
    for tick in books.ticks:
        name = f"{tick.schedule} at {tick.tick:.0f}"
        if claimed[tick.schedule, tick.tick] > 1:
            found.ticks[name] = f"was claimed {claimed[tick.schedule, tick.tick]} times"
        if made[tick.transaction] != 1:
            found.ticks[name] = f"made {made[tick.transaction]} jobs"
    for transaction in made.keys() - {tick.transaction for tick in books.ticks}:
        found.ticks[f"transaction {transaction}"] = "made a job without a tick"
    for one, other in pairwise(sorted(books.ticks, key=lambda tick: (tick.schedule, tick.tick))):
        if one.schedule == other.schedule and one.next != other.tick:
            found.ticks[f"{one.schedule} at {one.tick:.0f}"] = f"was to be followed by {one.next:.0f}"
