"""The locker's own book."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from magik_sa.claim import Claimed
from magik_sa.worker import book
from magik_sa.worker.book import Book


def job(key_lock: int | None = None, **marks: bool) -> Claimed:
    row: dict[str, Any] = {"id": uuid4(), "key_lock": key_lock}
    return Claimed(row, marks.get("interrupted", False), marks.get("suspect", False))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(book, "time", clock)
    return clock


def test_a_run_is_marked_once_when_it_lasts(clock: Clock) -> None:
    book, first = Book(), job()
    book.enter([first])
    assert book.due_to_mark() == []
    clock.now += 0.051
    assert book.seconds_to_mark() == 0
    assert book.due_to_mark() == [first.id]
    assert book.due_to_mark() == [first.id], "until it is known to be written"
    book.mark([first.id])
    assert book.due_to_mark() == []
    assert book.seconds_to_mark() is None


def test_a_run_that_has_ended_is_not_marked(clock: Clock) -> None:
    book, first = Book(), job()
    book.enter([first])
    book.strike([first])
    clock.now += 1
    assert book.due_to_mark() == []
    assert not book


def test_suspects_and_interrupted_runs_are_marked_by_who_claims_them(clock: Clock) -> None:
    book = Book()
    book.enter([job(suspect=True), job(interrupted=True)])
    clock.now += 1
    assert book.due_to_mark() == []


def test_busy_is_what_is_held_and_what_is_aside_for_a_moment(clock: Clock) -> None:
    book, held, aside = Book(), job(key_lock=7), UUID(int=1)
    book.enter([held])
    book.put_aside([aside])
    assert set(book.busy.ids) == {held.id, aside}
    assert book.busy.keys == [7]
    clock.now += 1.01
    assert book.seconds_aside() == 0
    assert book.busy.ids == [held.id]
    assert book.seconds_aside() is None


def test_a_lost_lock_is_remembered_until_the_run_ends(clock: Clock) -> None:
    book, first = Book(), job()
    book.enter([first])
    book.lose([first.id])
    assert not book.has_lock(first)
    book.strike([first])
    assert book.has_lock(first)


def test_suspects_start_one_after_the_other(clock: Clock) -> None:
    book, free, suspects = Book(), job(), [job(suspect=True), job(suspect=True)]
    assert book.admit([free, *suspects]) == ([free, suspects[0]], [suspects[1]])
    assert book.admit(suspects[1:]) == ([], suspects[1:])
    clock.now += 0.1
    assert book.admit(suspects[1:]) == (suspects[1:], [])
