"""Marks and the budget of full walks, by a clock of their own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from magik_sa.claim import marks
from magik_sa.claim.marks import START, Budget, Found, Marks, Place
from magik_sa.unreadable import EARLIEST
from tests.tools.clock import Clock, set_in

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
EDGE = NOON + timedelta(hours=1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return set_in(monkeypatch, marks)


def row(n: int, priority: int = 100, run_at: datetime = NOON) -> Found:
    return Found(UUID(int=n), priority, run_at)


def walked(every: float = 5.0, budget: Budget | None = None, cost: float = 0.0) -> Marks:
    """Marks of a queue that has been walked in full and knows three priorities."""
    queue = Marks(budget or Budget(), every)
    queue.walked_in_full([10, 100, 200], cost)
    return queue


# ---- when a full walk is due


def test_the_first_walk_is_a_full_one(clock: Clock) -> None:
    assert Marks(Budget(), 5.0).is_due()


@pytest.mark.parametrize(("poll_interval", "after"), [(20.0, 5.0), (5.0, 5.0), (0.2, 0.2)])
def test_a_full_walk_follows_after_five_seconds_or_a_shorter_poll_interval(
    clock: Clock, poll_interval: float, after: float
) -> None:
    queue = walked(poll_interval)
    assert queue.seconds() is None, "an idle worker need not wake up for it"
    clock.now += after - 0.001
    assert not queue.is_due()
    clock.now += 0.002
    assert queue.is_due()


def test_for_a_reason_it_follows_at_once(clock: Clock) -> None:
    queue = walked(cost=0.05)
    queue.owe()
    assert (queue.seconds(), queue.is_due()) == (0, True)
    queue.walked_in_full([], 0.0)
    assert (queue.seconds(), queue.is_due()) == (None, False)


def test_for_reasons_without_end_full_walks_take_one_per_cent_of_the_time(clock: Clock) -> None:
    queue, spent = walked(), 0.0
    end = clock.now + 1_000
    while clock.now < end:
        queue.owe()
        if queue.is_due():
            queue.walked_in_full([], 0.02)
            clock.now += 0.02
            spent += 0.02
        left = queue.seconds()
        clock.now += 0.001 if left is None else max(left, 0.001)
    assert 0.0095 * 1_000 < spent < 0.01 * 1_000 + marks.SAVED + 6 * 0.02


def test_queues_share_the_budget(clock: Clock) -> None:
    budget = Budget()
    one, two = walked(budget=budget, cost=0.2), walked(budget=budget, cost=0.2)
    one.owe()
    assert one.seconds() == pytest.approx(5.0)  # 0.1 s over, at 2 %; and then it is overdue anyway
    assert two.seconds() is None


def test_overdue_it_follows_whatever_it_costs(clock: Clock) -> None:
    queue = walked(cost=10.0)
    clock.now += 5.001
    assert queue.is_due()


def test_one_slow_walk_among_cheap_ones_does_not_use_it_up(clock: Clock) -> None:
    queue = walked(cost=0.001)
    queue.walked_in_full([], 1.0)
    queue.owe()
    assert queue.is_due()
    for _ in range(5):
        queue.walked_in_full([], 1.0)
    queue.owe()
    assert not queue.is_due()


def test_where_a_worker_has_died_it_follows_whatever_the_last_ones_cost(clock: Clock) -> None:
    queue = walked(cost=10.0)
    queue.insist()
    assert (queue.seconds(), queue.is_due()) == (0, True)
    queue.walked_in_full([], 10.0)
    assert not queue.is_due()


# ---- where the marks stand


def test_a_full_batch_passes_its_last_row_and_all_that_is_more_urgent(clock: Clock) -> None:
    queue = walked()
    queue.move([row(7), row(8), row(9)], short=False, edge=EDGE)
    assert queue.places == {10: Place(EDGE, START.id), 100: Place(NOON, UUID(int=9)), 200: START}


def test_a_short_batch_passes_everything(clock: Clock) -> None:
    queue = walked()
    queue.move([row(7)], short=True, edge=EDGE)
    assert queue.places == dict.fromkeys([10, 100, 200], Place(EDGE, START.id))


def test_no_mark_passes_the_edge(clock: Clock) -> None:
    queue = walked()
    queue.move([row(7, run_at=EDGE + timedelta(milliseconds=1))], short=False, edge=EDGE)
    assert queue.places[100] == Place(EDGE, START.id)


def test_no_mark_stands_at_a_time_that_python_cannot_hold(clock: Clock) -> None:
    queue = walked()
    queue.move([row(7, run_at=EARLIEST)], short=False, edge=EDGE)
    assert queue.places[100] == START


def test_a_step_back_is_to_just_before_the_row_and_never_forward(clock: Clock) -> None:
    queue = walked()
    queue.move([row(9)], short=False, edge=EDGE)
    for n in (5, 4, 6, 12):
        queue.step_back(row(n))
    assert queue.places[100] == Place(NOON, UUID(int=3))
    queue.step_back(row(0, priority=7))
    assert 7 not in queue.places


def test_priorities_that_were_seen_last_are_remembered(clock: Clock) -> None:
    queue = walked()
    for priority in range(1_000, 1_000 + marks.KNOWN - 1):
        queue.move([row(1, priority)], short=False, edge=EDGE)
    assert list(queue.places) == [10, *range(1_000, 1_000 + marks.KNOWN - 1)]
