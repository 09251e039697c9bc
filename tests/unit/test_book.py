"""The locker's own book."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from magik_sa.claim import Claimed
from magik_sa.worker import book
from magik_sa.worker.book import ASIDE_FOR, Book


def job(key_lock: int | None = None, **marks: bool) -> Claimed:
    row: dict[str, Any] = {"id": uuid4(), "key_lock": key_lock}
    return Claimed(row, marks.get("interrupted", False), marks.get("suspect", False))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.started: dict[Claimed, float] = {}

    def monotonic(self) -> float:
        return self.now


def opened(clock: Clock, *started: Claimed) -> Book:
    """A book with these jobs, all of them started now."""
    book = Book(clock.started.get)
    book.enter(started)
    clock.started.update(dict.fromkeys(started, clock.now))
    return book


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(book, "time", clock)
    return clock


def test_a_run_is_marked_once_when_it_lasts(clock: Clock) -> None:
    first = job()
    book = opened(clock, first)
    assert book.due_to_mark() == []
    clock.now += 0.051
    assert book.seconds_to_mark() == 0
    assert book.due_to_mark() == [first]
    assert book.due_to_mark() == [first], "until it is known to be written"
    book.mark([first])
    assert book.due_to_mark() == []
    assert book.seconds_to_mark() is None


def test_a_run_that_has_ended_is_not_marked(clock: Clock) -> None:
    first = job()
    book = opened(clock, first)
    book.strike([first])
    clock.now += 1
    assert book.due_to_mark() == []
    assert not book


def test_of_very_many_touched_rows_all_looks_together_take_half_of_the_time(clock: Clock) -> None:
    """However slow the claims are, what lies behind them is reached."""
    book, rows = opened(clock), [job() for _ in range(1_000)]
    unseen, looks = list(rows), 0
    while unseen:
        looks += 1
        assert looks < 2_000, "more looks at what was seen than at what was not"
        due = book.back() or [unseen.pop(0)]
        clock.now += 0.02 * len(due)
        book.put_touched_aside(due, 0.02 * len(due))
    assert looks > 1_000, "some were looked at again meanwhile"


def test_a_few_touched_rows_are_looked_at_again_after_a_second(clock: Clock) -> None:
    book, rows = opened(clock), [job(), job()]
    book.put_touched_aside(rows, 0.001)
    assert book.seconds_aside() == 1.0
    book.put_touched_aside([], 0.001)


def test_suspects_and_interrupted_runs_are_marked_by_who_claims_them(clock: Clock) -> None:
    book = opened(clock, job(suspect=True), job(interrupted=True))
    clock.now += 1
    assert book.due_to_mark() == []


def test_busy_is_what_is_held_and_what_is_aside_for_a_moment(clock: Clock) -> None:
    held, aside = job(key_lock=7), job()
    book = opened(clock, held)
    book.put_aside([aside], ASIDE_FOR)
    assert set(book.busy.ids) == {held.id, aside.id}
    assert book.busy.keys == [7]
    assert book.back() == []
    clock.now += 1.01
    assert book.seconds_aside() == 0
    assert book.back() == [aside]
    assert book.busy.ids == [held.id]
    assert book.seconds_aside() is None


def test_a_lost_lock_is_remembered_until_the_run_ends(clock: Clock) -> None:
    first = job()
    book = opened(clock, first)
    book.lose([first])
    assert not book.has_lock(first)
    book.strike([first])
    assert book.has_lock(first)


def test_what_waits_for_a_thread_has_not_begun_however_long_it_waits(clock: Clock) -> None:
    book, first = opened(clock), job()
    book.enter([first])
    clock.now += 1
    assert book.due_to_mark() == []
    assert book.seconds_to_mark() == pytest.approx(0.05), "it may start in this moment"
    clock.started[first] = clock.now
    clock.now += 0.051
    assert book.due_to_mark() == [first]
