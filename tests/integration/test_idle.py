"""How an idle locker raises and lowers its flags, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from magik_sa import names
from magik_sa.claim.walk import Walks
from magik_sa.server import connect_locking
from magik_sa.worker import idle
from magik_sa.worker.idle import HINT, LONGEST, SHORTEST, Idle, Look
from tests.tools import sessions
from tests.tools.clock import set_in
from tests.tools.sessions import TWO_KEYS, advisory_locks


class Waiting:
    """A locker's connection and how it waits, without the locker."""

    def __init__(self, dsn: str, app_name: str) -> None:
        self.dsn, self.connection = dsn, connect_locking(dsn, app_name)
        found = names.find(self.connection, None)
        self.channel = found.channel
        self.connection.execute(f"LISTEN {self.channel}".encode())
        self.walks = Walks(self.connection, found)
        self.idle = Idle(self.connection, found, ["mail", "payments"], 5.0, self.walks)

    def heard(self) -> list[str]:
        """The queues that somebody has told of by now."""
        return sorted(sessions.heard(self.dsn, self.connection, self.channel))


@pytest.fixture(autouse=True)
def _its_clock_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    set_in(monkeypatch, idle)


@pytest.fixture
def one(dsn: str) -> Iterator[Waiting]:
    waiting = Waiting(dsn, "one")
    yield waiting
    waiting.connection.close()


@pytest.fixture
def two(dsn: str) -> Iterator[Waiting]:
    waiting = Waiting(dsn, "two")
    yield waiting
    waiting.connection.close()


def flags(dsn: str) -> int:
    return advisory_locks(dsn)[TWO_KEYS]


def test_a_worker_that_is_full_tells_its_peers(dsn: str, one: Waiting, two: Waiting) -> None:
    assert one.idle.raise_flags()
    assert not two.idle.raise_flags()
    assert flags(dsn) == 2
    one.idle.lower_flags(tell=True)
    assert (flags(dsn), two.heard()) == (0, ["mail", "payments"])


def test_flags_given_up_without_a_word_are_told_of_when_the_worker_is_full(one: Waiting, two: Waiting) -> None:
    """It found a job and had threads left, then its last thread got one: nobody has waited with a flag since."""
    one.idle.raise_flags()
    one.idle.lower_flags(tell=False)
    assert two.heard() == []
    one.idle.lower_flags(tell=True)
    assert two.heard() == ["mail", "payments"]
    one.idle.lower_flags(tell=True)
    assert two.heard() == [], "told once"


def test_flags_that_were_tried_again_are_nobodys_debt(one: Waiting, two: Waiting) -> None:
    one.idle.raise_flags()
    one.idle.lower_flags(tell=False)
    two.idle.raise_flags()
    one.idle.raise_flags()
    one.idle.lower_flags(tell=True)
    assert two.heard() == []


def test_beside_an_open_producer_the_pauses_grow_and_beside_a_peer_they_do_not(
    dsn: str, one: Waiting, two: Waiting
) -> None:
    with psycopg.connect(dsn) as producer:
        producer.execute("INSERT INTO magik_jobs (job_class, queue) VALUES ('Any', 'mail')")
        pauses = [pause(one) for _ in range(6)]
    assert pauses == pytest.approx([min(SHORTEST * 2**n, LONGEST) for n in range(1, 7)])
    assert one.idle.raise_flags()
    assert pause(two) == pytest.approx(HINT), "as long as to the look for dead workers, at most"


def pause(waiting: Waiting) -> float:
    waiting.idle.raise_flags()
    waiting.idle.tick(["Any"])  # the look for dead workers, which would be due at once
    waiting.idle.settle(["Any"])
    return waiting.idle.seconds()


def test_a_job_whose_time_comes_between_the_walk_and_the_look_ahead_is_seen_by_the_look(dsn: str, one: Waiting) -> None:
    """The walk was too early for it, and its time is over when it is asked what comes next."""
    with psycopg.connect(dsn, autocommit=True) as app:
        app.execute("INSERT INTO magik_jobs (job_class, queue, run_at) VALUES ('Known', 'mail', now() + '1 h')")
        assert one.walks.walk("mail", 1, ["Known"], []) == []
        app.execute("UPDATE magik_jobs SET run_at = now()")
    one.idle.settle(["Known"])
    assert (one.idle.seconds(), one.idle.tick(["Known"])) == (0, Look.DUE)


def test_what_was_due_at_the_walk_and_not_taken_is_no_reason_to_look_again(dsn: str, one: Waiting) -> None:
    with psycopg.connect(dsn, autocommit=True) as app:
        app.execute("INSERT INTO magik_jobs (job_class, queue) VALUES ('Known', 'mail')")
    assert len(one.walks.walk("mail", 1, ["Known"], [])) == 1  # it runs here
    one.idle.settle(["Known"])
    assert one.idle.tick(["Known"]) is Look.NO
