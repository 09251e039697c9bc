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


class Cores:
    """What the gate reads: the processor time of the thread, and of the process."""

    def __init__(self) -> None:
        self.thread = self.process = 0.0

    def thread_time(self) -> float:
        return self.thread

    def process_time(self) -> float:
        return self.process


class Worked:
    """A gate that is told of jobs of 0.9 ms, one after the other; it and the moment."""

    def __init__(self, cores: Cores) -> None:
        self.gate, self.cores, self.now = Gate(), cores, 100.0

    def jobs(self, count: int, cpu: float, beside: float = 0.0) -> list[bool]:
        """So many, each with so much processor time of its own; for each whether it had all let in."""
        told = []
        for _ in range(count):
            began = self.gate.began(self.now)
            self.now += 0.0009
            self.cores.thread += cpu
            self.cores.process += cpu + beside
            told.append(self.gate.note(0.0009, began, 0.0009, self.now))
        return told


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> Worked:
    cores = Cores()
    monkeypatch.setattr(gate, "time", cores)
    return Worked(cores)


def test_short_jobs_that_compute_are_for_one_thread(worked: Worked) -> None:
    worked.jobs(30, cpu=0.0008)
    assert not worked.gate.is_open
    assert True not in worked.jobs(3_000, cpu=0.0008)
    assert not worked.gate.is_open


def test_short_jobs_that_wait_are_for_all_threads_and_tried_less_and_less_often(worked: Worked) -> None:
    shut = []
    for _ in range(8):
        began = worked.now
        while worked.gate.is_open:
            worked.jobs(1, cpu=0.0001)
        shut.append(worked.now - began)
        assert worked.jobs(30, cpu=0.0001).count(True) == 1
        assert worked.gate.is_open
    pauses = [round(each * 2) / 2 for each in shut[1:]]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 32]


def test_jobs_that_turn_out_to_wait_are_for_all_threads(worked: Worked) -> None:
    worked.jobs(500, cpu=0.0008)
    assert not worked.gate.is_open
    told = worked.jobs(1_000, cpu=0.0001)
    assert told.index(True) * 0.0009 < gate.AGAIN + 2 * gate.ENOUGH


def test_what_computes_beside_the_interpreter_is_for_all_threads(worked: Worked) -> None:
    worked.jobs(1_000, cpu=0.0008, beside=0.0008)
    assert worked.gate.is_open


def test_all_are_let_in_now_and_then_to_see_what_computes_beside_the_interpreter(worked: Worked) -> None:
    worked.jobs(30, cpu=0.0008)
    assert worked.jobs(6_000, cpu=0.0008, beside=0.0008).count(True) == 1
    assert worked.gate.is_open


def test_jobs_that_last_are_for_all_threads() -> None:
    of = Gate()
    for n in range(100):
        of.note(0.001, None, gate.SHORT, n / 1000)
    assert of.is_open


def shut_tray() -> Tray:
    """A tray of short jobs, which are left to one thread."""
    of = Tray()
    of.pace.mean = 0.0001
    of._gate.is_open = False
    return of


def takers(of: Tray, count: int, brief: int = 0) -> tuple[list[Claimed], threading.Event]:
    """Threads that take jobs: they wait a millisecond over each of the first ones, and keep the others."""
    got: list[Claimed] = []
    end = threading.Event()
    seen = itertools.count()

    def take() -> None:
        while (claimed := of.get()) is not None:
            if next(seen) < brief:
                end.wait(0.001)
            else:
                got.append(claimed)
                end.wait(60)

    for _ in range(count):
        threading.Thread(target=take, daemon=True).start()
    return got, end


def test_of_short_jobs_one_is_begun_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_when_jobs_turn_out_to_wait_all_threads_are_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tray, "STALLED", 3600)
    of = shut_tray()
    got, end = takers(of, 4, brief=40)
    of.put([job() for _ in range(44)])
    until(lambda: len(got) == 4, what="all have one of those that last")
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
    of.close()
    end.set()


def test_what_is_claimed_for_one_thread_is_what_one_gets_through(clock: Clock) -> None:
    """Otherwise some of it would have waited for too long, and been given back."""
    of = at_pace(0.0007, 10)
    assert of.room() == 500
    of.tray._gate.is_open = False
    assert of.room() == 10 + 71


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
