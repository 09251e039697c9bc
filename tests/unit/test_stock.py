"""What a worker has in hand, and how much of it there may be."""

from __future__ import annotations

import itertools
import threading
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from magik_sa.claim import Claimed
from magik_sa.worker import book, gate, pace, stock, suspects, tray
from magik_sa.worker.gate import Gate
from magik_sa.worker.pace import Pace
from magik_sa.worker.stock import Stock
from magik_sa.worker.tray import Tray
from tests.tools.clock import Clock, set_in
from tests.tools.waiting import never, until

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
numbers = itertools.count(1)


def job(priority: int = 100, queue: str = "default", **marks: Any) -> Claimed:
    n = next(numbers)
    row = {"id": UUID(int=n), "queue": queue, "priority": priority, "run_at": NOON + timedelta(seconds=n)}
    return Claimed({**row, "key_lock": None}, marks.get("interrupted", False), marks.get("suspect", False))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return set_in(monkeypatch, book, stock, suspects, tray)


def at_pace(seconds: float, concurrency: int) -> Stock:
    """The stock of a worker whose jobs have lasted so long."""
    of = Stock(concurrency)
    of.tray.pace.mean = seconds
    return of


# ---- the pace


def test_before_any_job_has_ended_no_more_are_expected_than_there_are_threads() -> None:
    assert Pace().soon(10) == 0


def test_a_worker_expects_to_start_what_its_threads_get_through_in_50_ms() -> None:
    pace = Pace()
    for _ in range(200):
        pace.note(0.005)
    assert pace.soon(10) in (99, 100)
    for _ in range(200):
        pace.note(0.00001)
    assert pace.soon(10) == 500


def test_one_long_job_among_short_ones_makes_it_cautious_but_not_for_ever() -> None:
    of = Pace()
    of.mean = 0.005
    of.note(3600)
    assert of.soon(10) == int(10 * pace.SOON / (0.9 * 0.005 + 0.1))
    for _ in range(60):
        of.note(0.005)
    assert of.soon(10) > 70


def test_threads_whose_jobs_last_are_not_expected_to_start_any(clock: Clock) -> None:
    of = at_pace(0.005, 2)
    of.enter([job(), job(), job()])
    assert of.tray.soon(2) == 20
    of.tray.get()
    clock.now += 0.051
    assert of.tray.soon(2) == 10
    in_a_thread(of.tray)
    clock.now += 0.051
    assert of.tray.soon(2) == 0


# ---- how much to claim


def test_while_jobs_last_there_is_room_for_one_a_thread(clock: Clock) -> None:
    of = at_pace(0.2, 3)
    assert of.room() == 3
    of.enter([job(), job()])
    assert of.room() == 1
    of.enter([job()])
    assert of.room() == 0


def test_while_jobs_are_short_there_is_room_for_what_will_soon_start(clock: Clock) -> None:
    of = at_pace(0.005, 2)
    assert of.room() == 22
    of.enter([job() for _ in range(22)])
    of.filled()
    assert of.room() == 0


def test_a_tray_that_is_half_full_is_filled_up_now_and_then(clock: Clock) -> None:
    of = at_pace(0.005, 2)
    of.enter([job() for _ in range(22)])
    of.filled()
    for _ in range(8):
        of.strike([of.tray.get() or job()])
    of.tray.pace.mean = 0.005
    assert of.room() == 0
    clock.now += 0.011
    assert of.room() == 8


def test_no_worker_holds_more_than_500(clock: Clock) -> None:
    of = at_pace(0.00001, 10)
    of.enter([job() for _ in range(490)])
    clock.now += 1
    assert of.room() == 10


def test_queues_share_the_tray(clock: Clock) -> None:
    of = at_pace(0.005, 2)
    assert of.share(1) == 22
    assert of.share(2) == 12, "both threads, and half of the tray"


# ---- the tray


def in_a_thread(tray: Tray) -> Claimed | None:
    got: list[Claimed | None] = []
    thread = threading.Thread(target=lambda: got.append(tray.get(5)))
    thread.start()
    thread.join()
    return got[0]


def test_an_urgent_job_is_next_whatever_waits_already() -> None:
    of, waiting, urgent = Tray(), [job(), job()], job(priority=1)
    of.put(waiting)
    of.put([urgent])
    assert [of.get(), of.get(), of.get()] == [urgent, *waiting]


def test_queues_take_turns() -> None:
    of = Tray()
    mail, pay = [job(1, queue="mail") for _ in range(3)], [job(200, queue="pay") for _ in range(2)]
    of.put([*mail, *pay])
    assert [of.get() for _ in range(5)] == [mail[0], pay[0], mail[1], pay[1], mail[2]]


def test_what_is_taken_back_is_not_started(clock: Clock) -> None:
    of, first, second, third = Tray(), job(), job(), job()
    of.put([first, second])
    assert of.get() == first
    clock.now += 0.06
    of.put([third])
    clock.now += 0.05
    assert of.seconds_to(0.1) == 0
    assert of.take_back(0.1) == [second]
    assert of.seconds_to(0.1) == pytest.approx(0.05)
    assert [of.get(0), of.get(0)] == [third, None]


def test_a_thread_that_waits_gets_what_comes_and_none_at_the_end() -> None:
    of = Tray()
    got: list[Claimed] = []
    thread = threading.Thread(target=lambda: got.extend(iter(of.get, None)))
    thread.start()
    only = job()
    of.put([only])
    while len(of):
        pass
    of.close()
    thread.join(5)
    assert got == [only]
    of.put([job()])
    assert of.get() is None, "closed is closed"


def test_who_waits_for_few_is_woken_when_no_more_are_left() -> None:
    of, waits = Tray(), threading.Event()

    def wait() -> None:
        waits.set()
        of.wait_for_few(1, 60)

    of.put([job() for _ in range(3)])
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    waits.wait()
    of.get()
    assert thread.is_alive()
    of.get()
    thread.join(5)
    assert not thread.is_alive()
    of.wait_for_few(1, 60)  # there are no more already


# ---- one thread, or all


def shut_tray() -> Tray:
    """A tray that lets one thread alone at what it has: its jobs were short of late."""
    of = Tray()
    of.pace.mean = 0.0001
    of.put([job()])
    of.get()
    of.get(0)
    return of


def takers(of: Tray, count: int) -> tuple[list[Claimed], threading.Event]:
    """Threads that take a job each and keep it until they are told to end."""
    got: list[Claimed] = []
    end = threading.Event()

    def take() -> None:
        if (claimed := of.get()) is not None:
            got.append(claimed)
            end.wait(60)

    for _ in range(count):
        threading.Thread(target=take, daemon=True).start()
    return got, end


def test_short_jobs_are_for_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it takes long over one of them."""
    monkeypatch.setattr(tray, "STALLED", 3600)
    of = shut_tray()
    got, end = takers(of, 3)
    of.put([job() for _ in range(3)])
    until(lambda: len(got) == 1, what="one has begun")
    never(lambda: len(got) > 1, 0.2)
    of.close()
    end.set()


def test_jobs_behind_one_that_lasts_are_begun_by_the_others() -> None:
    of = shut_tray()
    got, end = takers(of, 3)
    of.put([job() for _ in range(3)])
    until(lambda: len(got) == 3, what="all have begun")
    of.close()
    end.set()


def test_one_that_has_lasted_keeps_no_other_thread_from_working(monkeypatch: pytest.MonkeyPatch) -> None:
    of = shut_tray()
    got, end = takers(of, 1)
    of.put([job()])
    until(lambda: len(got) == 1, what="it has begun")
    at = time.monotonic() + 1
    monkeypatch.setattr(tray, "time", SimpleNamespace(monotonic=lambda: at))
    of.put([job(), job()])
    assert (of.get(0) is not None, of.get(0) is not None) == (True, True)
    end.set()


def test_jobs_that_wait_are_for_all_threads_and_those_that_compute_for_one() -> None:
    of, opened = Gate(), []
    for lasted, times in [(0.0001, 1), (1e-9, gate.TRIAL), (0.0005, gate.TRIAL + 1), (0.0001, 1)]:
        for _ in range(times):
            of.note(lasted, mean=0.0001)
        opened.append(of.is_open)
    shut, computing, waiting, at_once = opened
    assert (shut, computing) == (False, False), "1 ns is less than the processor time of such a loop"
    assert (waiting, at_once) == (True, True), "and it is not tried again at once"


def test_jobs_that_last_are_for_all_threads() -> None:
    of = Gate()
    of.note(0.0001, mean=gate.SHORT)
    assert of.is_open


# ---- suspects


def test_suspects_start_one_after_the_other(clock: Clock) -> None:
    of, doubtful, sound = Stock(3), [job(suspect=True) for _ in range(3)], job()
    of.enter([*doubtful, sound])
    assert [of.tray.get(0), of.tray.get(0)] == [sound, None]
    assert of.seconds_to_suspect() == 0
    assert of.suspects.first is doubtful[0]
    of.start_suspect()
    assert of.tray.get(0) is doubtful[0]
    assert of.seconds_to_suspect() == pytest.approx(0.1)
    clock.now += 0.1
    assert of.seconds_to_suspect() == 0, "beside one that lasts"
    of.start_suspect()
    of.strike([doubtful[1]])
    assert of.seconds_to_suspect() == 0, "or as soon as it has ended"


def test_no_suspect_starts_unless_a_thread_is_free(clock: Clock) -> None:
    """It would be said to have begun while it waits."""
    of = Stock(1)
    of.enter([job(suspect=True)])
    assert of.seconds_to_suspect() == 0
    of.enter([job()])
    assert of.seconds_to_suspect() is None


def test_what_has_waited_for_too_long_is_to_be_given_back(clock: Clock) -> None:
    of, waiting = Stock(1), [job(), job(), job(suspect=True)]
    of.enter(waiting)
    of.tray.get()
    assert of.seconds_to_late() == pytest.approx(0.1)
    clock.now += 0.1001
    assert of.seconds_to_late() == 0
    assert of.take_back(0.1) == waiting[1:]
    assert of.seconds_to_late() is None
    assert len(of.book) == 1
