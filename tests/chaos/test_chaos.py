"""Everything at once balances; and the balance is red wherever something is missing or there twice."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.tools.workers import ROOT

from . import record
from .balance import Imbalance, balance
from .books import Books
from .plan import DECK, plan
from .report import printed
from .run import Outcome, run
from .stage import CLOCK

SECONDS = 60 if os.environ.get("MAGIK_CHAOS") == "long" or os.environ.get("CI") else 20  # of faults


# ---- the plan


def test_the_same_seed_gives_the_same_plan() -> None:
    assert plan(60, 7) == plan(60, 7)
    assert plan(60, 7) != plan(60, 8)
    assert plan(30, 7) == [fault for fault in plan(60, 7) if fault.at <= 29]


@pytest.mark.parametrize("seed", range(5))
def test_a_minute_has_every_kind_of_fault(seed: int) -> None:
    assert {fault.kind for fault in plan(60, seed)} == set(DECK)


# ---- the run


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    """One run; the tests below all look at it."""
    seed = int(time.time())
    outcome = run(SECONDS, seed)
    print(printed(outcome))
    return outcome


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_nothing_is_lost_and_nothing_doubled_when_everything_happens_at_once(outcome: Outcome) -> None:
    assert list(outcome.imbalance.lines()) == []
    assert [fault.kind for fault in outcome.struck] == [fault.kind for fault in outcome.plan]
    assert set(outcome.figures.classes) == {
        *("Simple", "Mail", "OneOfAKey", "Chain", "Long", "Payment", "Flaky", "Overlong", "Doomed", "Tick")
    }
    assert outcome.figures.committed > 10 * SECONDS
    assert outcome.figures.again.total() > SECONDS / 2


# ---- the balance: red for whatever is wrong


def doctored(outcome: Outcome, file: Path, keep: Callable[[record.Line], bool]) -> Imbalance:
    """What the balance says when the record has only the lines that `keep` wants."""
    file.write_text("".join(f"{line}\n" for line in outcome.record if keep(line)))
    return balance(record.read(file), outcome.books)


def job_of(outcome: Outcome, cls: str) -> UUID:
    """A job of that class."""
    return next(job.id for job in outcome.books.enqueued if job.job_class == cls)


def test_the_record_is_read_as_it_was_written(outcome: Outcome, tmp_path: Path) -> None:
    assert not doctored(outcome, tmp_path / "record", lambda _: True)


@pytest.mark.parametrize("cls", ["Simple", "Mail", "Payment", "Tick"])
def test_a_job_without_its_effect_is_lost(outcome: Outcome, tmp_path: Path, cls: str) -> None:
    job = job_of(outcome, cls)
    found = doctored(outcome, tmp_path / "record", lambda line: line.job != job or line.what != "effect")
    assert found.lost == {f"{cls} {job}": "has ended without the effects [0]"}


def test_a_chunk_without_its_effect_is_lost(outcome: Outcome, tmp_path: Path) -> None:
    job = job_of(outcome, "Long")
    found = doctored(outcome, tmp_path / "record", lambda line: (line.job, line.what, line.chunk) != (job, "effect", 3))
    assert found.lost == {f"Long {job}": "has ended without the effects [3]"}


def test_a_job_that_the_database_never_had_is_lost(outcome: Outcome) -> None:
    line = record.Line(0, 1, "committed", "Simple", uuid4())
    assert list(balance([*outcome.record, line], outcome.books).lost) == [str(line.job)]


@pytest.mark.parametrize("what", ["undone", "repeat"])
def test_a_job_that_was_not_committed_and_is_there_is_told(outcome: Outcome, what: str) -> None:
    line = record.Line(0, 1, what, "Simple", job_of(outcome, "Simple"))
    assert list(balance([*outcome.record, line], outcome.books).unasked) == [str(line.job)]


Change = Callable[[Books], object]


def more(cls: str, part: int = 0) -> Change:
    """One more row of a job's."""

    def change(books: Books) -> None:
        books.entries[next(job.id for job in books.enqueued if job.job_class == cls), part] += 1

    return change


def less(cls: str, part: int = 0) -> Change:
    """No row of a job's."""

    def change(books: Books) -> None:
        del books.entries[next(job.id for job in books.enqueued if job.job_class == cls), part]

    return change


def given_up(cls: str) -> Change:
    """A dead letter that should have ended well."""

    def change(books: Books) -> None:
        books.dead[next(job.id for job in books.enqueued if job.job_class == cls)] = "an error"

    return change


def without_its_tick(books: Books) -> None:
    """A job of a schedule, and no tick."""
    del books.ticks[len(books.ticks) // 2]


def late(books: Books) -> None:
    """A successor that was there before its own end."""
    ends, keyed = dict(books.ended), [job for job in books.enqueued if job.job_class == "Chain" and job.key]
    one = next(job for job in keyed if job.args["step"] == 1)
    zero = next(job for job in keyed if job.args == {**one.args, "step": 0})
    books.enqueued[books.enqueued.index(one)] = replace(one, at=ends[zero.id] - 0.001)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("doubled", more("Simple")),
        ("doubled", more("Tick")),
        ("doubled", more("Long", 2)),
        ("doubled", more("Doomed")),  # rolled back, as it should have been
        ("doubled", lambda books: books.bookings.update([next(iter(books.bookings))])),
        ("doubled", lambda books: books.accounts.update({0: books.accounts[0] + 1})),
        ("doubled", lambda books: books.enqueued.append(next(j for j in books.enqueued if j.job_class == "Chain"))),
        ("doubled", late),
        ("lost", less("Simple")),
        ("lost", less("Chain")),
        ("lost", less("Long", 4)),
        ("lost", lambda books: books.bookings.pop(next(iter(books.bookings)))),
        ("lost", lambda books: books.live.add(books.enqueued[0].id)),
        ("lost", lambda books: books.dead.pop(next(iter(books.dead)))),
        ("lost", lambda books: books.dead.update({next(iter(books.dead)): ""})),
        ("lost", given_up("Simple")),
        ("ticks", without_its_tick),
        ("ticks", lambda books: books.ticks.append(books.ticks[0])),
        ("ticks", lambda books: books.ticks.append(replace(books.ticks[0], transaction="0"))),
    ],
)
def test_books_that_are_wrong_do_not_balance(outcome: Outcome, kind: str, change: Change) -> None:
    books = copy.deepcopy(outcome.books)
    change(books)
    assert balance(outcome.record, books).kinds()[kind]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_does_not_balance_exits_with_1() -> None:
    """With workers whose jobs' rows do not go back with a failure."""
    told = ["--seconds", "5", "--seed", "3", "--control", "without_the_transaction"]
    command = [sys.executable, "-m", "tests.chaos", *told]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 1
    assert "\ndoubled: " in done.stdout


# ---- the clock


def test_the_clock_of_one_worker_is_wrong(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("7200")
    told = """
import datetime, time
real = time.clock_gettime(time.CLOCK_REALTIME)
now = datetime.datetime.now(datetime.UTC)
print(*(round((other - real) / 60) for other in (time.time(), time.time_ns() / 1e9, now.timestamp())))
assert isinstance(datetime.datetime.fromisoformat("2026-01-01"), datetime.datetime)"""
    env = {**os.environ, "CHAOS_CLOCK": str(clock), "PYTHONPATH": str(CLOCK)}
    done = subprocess.run([sys.executable, "-c", told], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["120", "120", "120"]
