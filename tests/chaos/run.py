"""One run: faults for so long, then quiet, then the balance."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from tests.tools.sessions import ONE_KEY, advisory_locks, pids
from tests.tools.waiting import NotInTime, until

from . import books, record
from .balance import Imbalance, balance
from .books import Books
from .faults import Faults, Struck
from .figures import Figures, figures
from .plan import Fault, plan
from .record import Line
from .stage import PROGRAM, Ended, Said, Stage

DRAINED_WITHIN = 60.0  # seconds from the last fault until nothing is live any more
SETTLED_WITHIN = 5.0  # seconds until locks and notes are gone with the last job, connections with their workers

LIVE = "SELECT count(*) FROM magik_jobs WHERE finished_at IS NULL AND expired_at IS NULL"
ROWS = "SELECT count(*) FROM {}"


@dataclass
class Outcome:
    """What came of a run."""

    seconds: float
    seed: int
    plan: list[Fault]
    struck: list[Struck]
    ended: list[Ended]
    said: Said
    drained: float
    record: list[Line]
    books: Books
    imbalance: Imbalance
    figures: Figures


def run(seconds: float, seed: int, program: tuple[str, ...] = PROGRAM, keep: str | None = None) -> Outcome:
    """Let it happen, and see what is left. `keep` is a file that the record is copied to."""
    faults = plan(seconds, seed)
    with Stage(seed, program) as stage:
        stage.begin()
        struck = Faults(stage, faults)
        struck.play(seconds)
        left: dict[str, str] = {}
        drained = _drain(stage, left)
        _settle(stage, left)
        lines = record.read(stage.record)
        if keep:
            shutil.copy(stage.record, keep)
        with stage.connected() as connection:
            known = books.read(connection)
    imbalance = balance(lines, known)
    imbalance.left |= left
    numbers = figures(lines, known, struck.struck)
    ended, said = stage.ended, stage.said
    return Outcome(seconds, seed, faults, struck.struck, ended, said, drained, lines, known, imbalance, numbers)


def _drain(stage: Stage, left: dict[str, str]) -> float:
    """Nothing more is added, and what is there runs to its end; how long that took."""
    stage.hush()
    began = time.monotonic()
    try:
        until(
            lambda: _tended(stage) and _count(stage, LIVE) == 0, DRAINED_WITHIN, every=0.05, what="the queue is empty"
        )
    except NotInTime:
        left["jobs"] = f"{_count(stage, LIVE)} are live {DRAINED_WITHIN:g} s after the last fault"
    return time.monotonic() - began


def _tended(stage: Stage) -> bool:
    stage.tend()
    return True


def _settle(stage: Stage, left: dict[str, str]) -> None:
    """Nothing is left of the jobs; then the workers go, and nothing is left of them."""
    _expect(left, "locks of jobs", lambda: advisory_locks(stage.dsn)[ONE_KEY])
    _expect(left, "notes of claims", lambda: _count(stage, ROWS.format("magik_claims")))
    stage.dismiss()
    _expect(left, "advisory locks", lambda: sum(advisory_locks(stage.dsn).values()))
    _expect(left, "rows of workers", lambda: _count(stage, ROWS.format("magik_workers")))
    _expect(left, "connections", lambda: len(pids(stage.dsn)))
    for ended in stage.ended:
        if not ended.expected:
            left[f"worker {ended.pid}"] = f"ended with {ended.code}: {ended.said}"


def _expect(left: dict[str, str], what: str, count: Callable[[], int]) -> None:
    try:
        until(lambda: count() == 0, SETTLED_WITHIN, every=0.05)
    except NotInTime:
        left[what] = f"are left: {count()}"


def _count(stage: Stage, query: str) -> int:
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])
