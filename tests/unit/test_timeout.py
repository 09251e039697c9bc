"""Time limits: who is over them, what an interrupt reaches, and that it reaches nothing else."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import pytest

from magik_sa import JobTimeout, timeout
from magik_sa.interrupts import Interrupt
from magik_sa.timeout import Limit, Limits
from magik_sa.worker import watchdog
from magik_sa.worker.letters import Assignment
from magik_sa.worker.locker import Locker
from magik_sa.worker.watchdog import Watchdog

SHORT = timedelta(milliseconds=50)
LONG = 20  # seconds: less than the 30 that it would be without an interrupt, and more than any machine takes over one
NOWHERE = Assignment("", None, "", "", (), (), 1, 1.0, 1.0)


@pytest.fixture
def limits() -> Iterator[Limits]:
    """Limits with a watchdog, of a worker that has no locking connection yet."""
    limits = Limits()
    one = Watchdog(Locker(NOWHERE), limits)
    one.start()
    yield limits
    one.stop()


def spin(seconds: float, step: Callable[[], object] = lambda: None) -> float:
    """Work for so long; the time at which it returns."""
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        step()
    return now


def lasted(work: Callable[[], object]) -> float:
    """How many seconds `work` took until its time was up."""
    began = time.monotonic()
    with pytest.raises(JobTimeout, match="MAGIK_JOB_TIMEOUT: It lasted longer than"):
        work()
    return time.monotonic() - began


# ---- who is over the limit


def test_in_time_it_returns_what_the_work_returns(limits: Limits) -> None:
    assert limits.within(timedelta(seconds=30), lambda: 42) == 42


def test_in_time_it_raises_what_the_work_raises(limits: Limits) -> None:
    with pytest.raises(ZeroDivisionError):
        limits.within(timedelta(seconds=30), lambda: 1 // 0)


def test_without_a_limit_nothing_is_watched(limits: Limits) -> None:
    assert limits.within(None, lambda: len(limits._armed)) == 0
    assert limits.within(timedelta(seconds=30), lambda: len(limits._armed)) == 1
    assert not limits._armed


def test_a_loop_is_interrupted_in_the_middle(limits: Limits) -> None:
    with pytest.raises(JobTimeout) as caught:
        limits.within(SHORT, lambda: spin(30))
    assert isinstance(caught.value.__cause__, Interrupt)
    assert "spin" in {entry.name for entry in caught.traceback} | names(caught.value.__cause__)


def names(error: BaseException) -> set[str]:
    found, trace = set(), error.__traceback__
    while trace is not None:
        found.add(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return found


def test_sleeps_are_interrupted_between_two_of_them(limits: Limits) -> None:
    assert 0.05 <= lasted(lambda: limits.within(SHORT, lambda: spin(30, lambda: time.sleep(0.01)))) < LONG


def test_one_long_sleep_is_interrupted_when_it_returns(limits: Limits) -> None:
    """As any call into C: Python raises nothing before it comes back."""
    assert lasted(lambda: limits.within(SHORT, lambda: time.sleep(0.5))) >= 0.5


def swallow(kind: type[BaseException], seconds: float, most: int = 1_000) -> int:
    """Take no notice, so many times at most; how often there was something to take notice of."""
    end, taken = time.monotonic() + seconds, 0
    while taken < most:
        try:
            spin(end - time.monotonic())
            return taken
        except kind:
            taken += 1
    return taken


def test_except_exception_lets_the_interrupt_pass(limits: Limits) -> None:
    assert lasted(lambda: limits.within(SHORT, lambda: swallow(Exception, 30))) < LONG


def test_work_that_swallows_everything_is_over_its_limit_all_the_same(limits: Limits) -> None:
    assert lasted(lambda: limits.within(SHORT, lambda: swallow(BaseException, 0.2))) >= 0.2


def test_work_that_goes_on_is_interrupted_again_each_second(limits: Limits) -> None:
    taken: list[int] = []
    took = lasted(lambda: limits.within(SHORT, lambda: taken.append(swallow(BaseException, 30, most=3))))
    assert taken == [3]
    assert 2 <= took < LONG


def test_the_log_tells_once_of_work_that_takes_no_notice(
    limits: Limits, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timeout, "STUBBORN_AFTER", 0.5)
    lasted(lambda: limits.within(SHORT, lambda: time.sleep(2.5)))
    assert [record.message for record in caplog.records] == ["event=limit_ignored thread=MainThread limit=50ms"]


def test_another_error_raised_over_the_limit_is_its_cause(limits: Limits) -> None:
    def work() -> None:
        try:
            spin(30)
        finally:
            raise ZeroDivisionError

    with pytest.raises(JobTimeout) as caught:
        limits.within(SHORT, work)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_where_nobody_interrupts_the_clock_still_judges() -> None:
    assert lasted(lambda: Limits().within(timedelta(milliseconds=1), lambda: time.sleep(0.002)))


def test_a_limit_in_a_limit_ends_only_what_is_in_it(limits: Limits) -> None:
    def outer() -> str:
        lasted(lambda: limits.within(SHORT, lambda: spin(30)))
        return "unharmed"

    assert limits.within(timedelta(seconds=30), outer) == "unharmed"


def test_the_outer_limit_ends_the_inner_work(limits: Limits) -> None:
    def inner() -> float:
        return limits.within(timedelta(seconds=30), lambda: spin(30))

    assert lasted(lambda: limits.within(SHORT, inner)) < LONG


def test_threads_are_limited_each_for_itself(limits: Limits) -> None:
    def work(span: float) -> str:
        try:
            limits.within(timedelta(seconds=span), lambda: spin(0.4, lambda: time.sleep(0.001)))
        except JobTimeout:
            return "over"
        return "in time"

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(work, [30, 0.2] * 3)) == ["in time", "over"] * 3


def test_a_limit_that_comes_first_wakes_the_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sleeps for up to a second; for a minute here."""
    monkeypatch.setattr(watchdog, "LOOK_EVERY", 60.0)
    sleeping, limits = threading.Event(), Limits()
    monkeypatch.setattr(limits, "_bell", Bell(sleeping))
    one = Watchdog(Locker(NOWHERE), limits)
    one.start()
    sleeping.wait()
    assert lasted(lambda: limits.within(timedelta(milliseconds=1), lambda: spin(30))) < LONG
    one.stop()


class Bell(SimpleQueue[None]):
    """Tells that somebody sleeps by it."""

    def __init__(self, sleeping: threading.Event) -> None:
        self._sleeping = sleeping

    def get(self, block: bool = True, timeout: float | None = None) -> None:
        self._sleeping.set()
        super().get(block, timeout)


# ---- what an interrupt reaches


def close_shaves(limits: Limits, pieces: int, seed: int) -> list[tuple[float, bool, float]]:
    """Pieces of work that end within 5 ms of their limit, and after each what the next would be.

    Of each: how long it lasted by its own clock, whether it was judged to be over, and how long the whole call took.
    """
    chance, found = random.Random(seed), []
    for _ in range(pieces):
        span = chance.uniform(0.030, 0.032)
        own: list[float] = []

        def piece(span: float = span, own: list[float] = own) -> None:
            began = time.monotonic()
            time.sleep(span - 0.006)
            own.append(spin(began + span + chance.uniform(-0.005, 0.005) - time.monotonic()) - began)

        began, over = time.monotonic(), False
        try:
            limits.within(timedelta(seconds=span), piece)
        except JobTimeout:
            over = True
        whole = time.monotonic() - began
        spin(0.002)  # what comes next: an Interrupt here would end this thread
        found.append(((own or [whole])[0] - span, over, whole - span))
    return found


def test_work_that_ends_close_to_its_limit_is_judged_by_the_clock_and_the_next_is_never_hit(limits: Limits) -> None:
    """200 that end within 5 ms of the limit, in four threads."""
    with ThreadPoolExecutor(4) as threads:
        done = [
            piece for found in threads.map(lambda seed: close_shaves(limits, 50, seed), range(4)) for piece in found
        ]
    assert len(done) == 200
    assert all(whole >= 0 for _, over, whole in done if over), "marked, and not over its limit"
    assert all(own < 0 for own, over, _ in done if not over), "not marked, and over its limit"
    assert {over for _, over, _ in done} == {True, False}


def on_the_dot(limits: Limits, pieces: int) -> int:
    """Work that returns in the very moment of its limit, or right before: the interrupt meets the limit's own end."""
    over = 0
    for n in range(pieces):
        try:
            limits.within(timedelta(milliseconds=1), lambda n=n: spin(0.001 - 0.00002 * (n % 5)))  # type: ignore[misc]
        except JobTimeout:
            over += 1
        spin(0.0005)
    return over


def test_an_interrupt_that_meets_the_end_of_its_limit_goes_no_further(limits: Limits) -> None:
    assert on_the_dot(limits, 500) > 0


class Late(Limits):
    """Interrupts in the worst moment: when the work has returned, in the middle of taking its limit off."""

    met = False

    def _close(self, limit: Limit) -> None:
        if not self.met:
            self.met = True
            elsewhere(lambda: self._fire(limit))
        super()._close(limit)


def elsewhere(act: Callable[[], None]) -> None:
    """Do it in another thread, and wait for it here."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(act).result()


def test_an_interrupt_in_the_middle_of_taking_the_limit_off_goes_no_further() -> None:
    limits = Late()
    assert limits.within(timedelta(seconds=30), lambda: "in time") == "in time"
    assert (limits.met, limits._armed) == (True, {})


def fired_late(limits: Limits) -> None:
    """The watchdog is about to interrupt, and comes to it when the work is over and the next has begun."""
    seen: list[Limit] = []
    limits.within(timedelta(seconds=30), lambda: seen.extend(limits._armed.values()))
    elsewhere(lambda: limits._fire(seen[0]))
    spin(0.01)


def test_a_limit_that_was_taken_off_interrupts_nobody() -> None:
    fired_late(Limits())


def test_one_that_is_only_forgotten_interrupts_what_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr(Limits, "_close", lambda limits, limit: limits._armed.pop(id(limit), None))
    with pytest.raises(Interrupt):
        fired_late(Limits())


def test_threads_come_back_unharmed(limits: Limits) -> None:
    """A thread that was interrupted is a thread like any other."""
    seen: list[Any] = []

    def thread() -> None:
        for _ in range(3):
            lasted(lambda: limits.within(SHORT, lambda: spin(30)))
        seen.append(spin(0.01))

    one = threading.Thread(target=thread)
    one.start()
    one.join(10)
    assert len(seen) == 1
