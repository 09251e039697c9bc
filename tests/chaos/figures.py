"""The figures of a run: how much was done, what ran again and why, how long the queue took to come back."""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final
from uuid import UUID

from .books import Books
from .faults import Struck
from .record import Line
from .stage import THREADS

SPELLS: Final = ("restart", "read_only", "silence")  # in which work stands still for a reason
SERVER: Final = ("restart", "read_only")  # nobody can work
HITS: Final = ("kill", "term", "locker")  # what takes jobs from a worker
HARMLESS: Final = {"snapshot", "clock", "producer"}  # what should be felt by nobody
AFTER: Final = {
    "restart": 5.0,
    "read_only": 5.0,
    "silence": 5.0,
    "freeze": 0.5,
}  # seconds until workers are back for sure
IN_HAND: Final = 5.0  # seconds: no run lasts longer


@dataclass
class Figures:
    """All of them; times in seconds."""

    asked: int = 0
    undone: int = 0
    repeats: int = 0
    unsure: int = 0  # the answer to their commit was lost
    committed: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    again: Counter[str] = field(default_factory=Counter)
    dead: int = 0
    entries: int = 0
    bookings: int = 0
    ticks: int = 0
    recoveries: dict[str, list[float]] = field(default_factory=dict)
    back: dict[str, list[float]] = field(default_factory=dict)
    wakes: dict[str, list[float]] = field(default_factory=dict)


def figures(record: Iterable[Line], books: Books, struck: Sequence[Struck]) -> Figures:
    """Count and measure."""
    lines = list(record)
    starts = _starts(lines)
    told = Counter(line.what for line in lines)
    answered = {line.job for line in lines if line.what in {"committed", "repeat", "undone"}}
    return Figures(
        asked=told["asked"],
        undone=told["undone"],
        repeats=told["repeat"],
        unsure=len({line.job for line in lines if line.what == "asked"} - answered),
        committed=len(books.enqueued),
        classes=Counter(job.job_class for job in books.enqueued),
        runs=told["start"],
        again=Counter(_reasons(starts, books, struck)),
        dead=len(books.dead),
        entries=sum(books.entries.values()),
        bookings=sum(books.bookings.values()),
        ticks=len(books.ticks),
        recoveries=_recoveries(lines, starts, struck),
        back=_back(lines, struck),
        wakes=_wakes(starts, books, struck),
    )


def _starts(lines: Iterable[Line]) -> dict[UUID, list[Line]]:
    """Of each job its starts, in order."""
    starts = defaultdict(list)
    for line in lines:
        if line.what == "start":
            starts[line.job].append(line)
    return starts


# ---- why jobs ran again


def _reasons(starts: Mapping[UUID, list[Line]], books: Books, struck: Sequence[Struck]) -> Iterator[str]:
    failed: dict[UUID, list[tuple[float, str]]] = defaultdict(list)
    for id, error, at in books.failed:
        failed[id].append((at, error))
    for id, runs in starts.items():
        for one, again in pairwise(runs):
            errors = [error for at, error in failed[id] if one.at <= at <= again.at]
            yield _reason(one, again, errors[-1] if errors else "", struck)


def _reason(one: Line, again: Line, error: str, struck: Sequence[Struck]) -> str:
    if error and "INTERRUPTED" not in error:
        return next((why for part, why in ERRORS.items() if part in error), f"failed: {error[:60]}")
    near = [fault for fault in struck if fault.at <= again.at and fault.until + REACH.get(fault.kind, 0.0) >= one.at]
    kinds = {fault.kind for fault in near if not fault.pids or one.pid in fault.pids}
    return next((why for kind, why in WHY.items() if kind in kinds), "interrupted" if error else "not known")


REACH: Final = {"term": 1.5, "restart": 1.0, "read_only": 1.0, "silence": 1.0}  # seconds after it
WHY: Final = {
    "kill": "its worker was killed",
    "term": "its worker was told to stop",
    "restart": "the server was restarted",
    "read_only": "the server took no writes, and sessions were ended",
    "locker": "the locking connection was ended",
    "backend": "a session of its worker was ended",
    "silence": "the network was silent",
    "freeze": "its worker was frozen",
}
ERRORS: Final = {
    "JOB_TIMEOUT": "over its time limit",
    "RuntimeError": "failed, as it was written to",
    "ReadOnly": "the server took no writes",
    "read-only": "the server took no writes",
    "AdminShutdown": "lost its connection",
    "OperationalError": "lost its connection",
    "DeadlockDetected": "deadlock",
    "PendingRollback": "lost its connection",
    "connection": "lost its connection",
}


# ---- how long it took


def _recoveries(
    lines: Sequence[Line], starts: Mapping[UUID, list[Line]], struck: Sequence[Struck]
) -> dict[str, list[float]]:
    """From a fault to the next start of each job that it struck: the run before was in such a process.

    A run that came to its own end all the same (a worker keeps its jobs where it can) was not struck.
    """
    found: dict[str, list[float]] = defaultdict(list)
    ended: dict[tuple[int, UUID], list[float]] = defaultdict(list)
    for line in lines:
        if line.what in {"end", "raised"}:
            ended[line.pid, line.job].append(line.at)
    for one, again in (pair for runs in starts.values() for pair in pairwise(runs)):
        hits = [each for each in struck if each.kind in HITS and one.pid in each.pids and one.at < each.at < again.at]
        if hits and not any(hits[-1].at < at < again.at for at in ended[one.pid, one.job]):
            fault = hits[-1]
            sort = "" if _idle(lines, struck, fault, again.at) else ", amid others or nobody idle"
            found[fault.kind + sort].append(again.at - fault.at)
    return found


def _idle(lines: Sequence[Line], struck: Sequence[Struck], fault: Struck, until: float) -> bool:
    """Whether a worker had a thread to spare then, and nothing else struck it, the server, or whom the fault struck."""
    others = [each for each in struck if each is not fault and _meet(each, fault.at, until)]
    hurt = {pid for each in others for pid in each.pids}
    if hurt & set(fault.pids) or any(each.kind in SERVER for each in others):
        return False
    gone = {pid for each in struck if each.kind in {"kill", "term"} and each.at <= until for pid in each.pids}
    seen = [line for line in lines if fault.at - IN_HAND <= line.at <= fault.at]
    open_runs = {(line.pid, line.job): line.what in {"start", "effect"} for line in seen}  # the last counts
    held = Counter(pid for (pid, _), runs in open_runs.items() if runs)
    there = {line.pid for line in seen if line.what == "start"} - hurt - gone
    return any(held[pid] < THREADS for pid in there)


def _back(lines: Iterable[Line], struck: Sequence[Struck]) -> dict[str, list[float]]:
    """From the end of a restart or a read-only spell to the first end of a job after it."""
    ends = sorted(line.at for line in lines if line.what == "end")
    found: dict[str, list[float]] = defaultdict(list)
    for fault in struck:
        if fault.kind in SERVER:
            place = bisect.bisect(ends, fault.until)
            if place < len(ends):
                found[fault.kind].append(ends[place] - fault.until)
    return found


def _wakes(starts: Mapping[UUID, list[Line]], books: Books, struck: Sequence[Struck]) -> dict[str, list[float]]:
    """From the commit (or run_at, where it is later) to the first start, in three sorts of times."""
    found: dict[str, list[float]] = defaultdict(list)
    for job in books.enqueued:
        if runs := starts.get(job.id):
            first = runs[0].at
            met = {fault.kind for fault in struck if _meet(fault, job.due, first)}
            sort = "in a spell" if met & set(SPELLS) else "amid other faults" if met else "quiet"
            keyed = "keyed, " if job.key is not None else ""
            found[f"{keyed}{sort}"].append(first - job.due)
    return found


def _meet(fault: Struck, begin: float, end: float) -> bool:
    return fault.kind not in HARMLESS and fault.at <= end and fault.until + AFTER.get(fault.kind, 0.0) >= begin
