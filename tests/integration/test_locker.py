"""The locker, whose connection breaks at each of its exchanges with the server in turn: nothing is lost or left behind.

It runs here as a thread on a real server, without performers: the test takes the jobs from it and says when they end.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import make_url

from magik_sa import Job, server
from magik_sa.claim import Claimed, Claims
from magik_sa.outcome import Outcome
from magik_sa.server import LockingConnection
from magik_sa.worker.letters import Assignment, Ended, Stop
from magik_sa.worker.locker import Locker
from tests.tools.proxy import Proxy
from tests.tools.sessions import ONE_KEY, TWO_KEYS, advisory_locks
from tests.tools.waiting import never, until
from tests.tools.workers import dsn_of

Moment = Literal["before", "after"]  # the server has done what it was asked for: the answer does not come
Noticed = Literal["noticed", "unnoticed"]  # by the server: if not, the session lives on and keeps its locks
EACH = [(moment, noticed) for moment in get_args(Moment) for noticed in get_args(Noticed)]

ADD = "INSERT INTO magik_jobs (job_class, key_digest) SELECT 'InTheHouse', %s FROM generate_series(1, %s) RETURNING id"

original = LockingConnection.wait


class InTheHouse(Job, policy="system"):
    """Never performed: the test says how it ended."""

    def perform(self) -> None:
        raise NotImplementedError


class Breaks:
    """Breaks the locking connection at chosen exchanges, counted from `arm` on."""

    def __init__(self, dsn: str, proxy: Proxy, moment: Moment, noticed: Noticed) -> None:
        self.dsn, self.proxy, self.moment, self.noticed = dsn, proxy, moment, noticed
        self.at: list[int] = []
        self.count = -1
        self.counting = threading.Lock()  # the locker is at it while a test arms

    def arm(self, *at: int) -> None:
        with self.counting:
            self.at, self.count = list(at), -1

    def disarm(self) -> bool:
        """Whether all breaks have happened."""
        with self.counting:
            left, self.at = self.at, []
        return not left

    def is_now(self) -> bool:
        """Count an exchange; whether it is one to break."""
        with self.counting:
            self.count += 1
            chosen = self.count in self.at
            if chosen:
                self.at.remove(self.count)
        return chosen

    def wait(self, connection: LockingConnection, gen: Any, *args: Any, **options: Any) -> Any:
        """In place of psycopg's own: one exchange with the server."""
        if not self.is_now():
            return original(connection, gen, *args, **options)
        if self.moment == "before":
            self.sever(connection)
            return original(connection, gen, *args, **options)
        original(connection, gen, *args, **options)
        self.sever(connection)
        connection.pgconn.exec_(b"SELECT 1")
        raise psycopg.OperationalError(connection.pgconn.get_error_message())

    def sever(self, connection: LockingConnection) -> None:
        if self.noticed == "noticed":
            pid = connection.info.backend_pid
            with psycopg.connect(self.dsn, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s)", [pid])
                gone = "SELECT FROM pg_stat_activity WHERE pid = %s"
                until(lambda: not other.execute(gone, [pid]).rowcount, 5, every=0.001, what="its session is gone")
        else:
            self.proxy.silence()
            with socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)


class House:
    """A database with jobs, and lockers on it whose connections break."""

    def __init__(self, dsn: str, app: psycopg.Connection[Any], proxied: str, breaks: Breaks) -> None:
        self.dsn, self.app, self.proxied, self.breaks = dsn, app, proxied, breaks

    @contextlib.contextmanager
    def locker(self, concurrency: int, announce: Callable[[], None] = lambda: None) -> Iterator[Locker]:
        told = Assignment(self.proxied, None, "house", "house", ("default",), ("InTheHouse",), concurrency, 0.2, 60.0)
        locker = Locker(told, announce)
        locker.start()
        try:
            yield locker
        finally:
            self.broken = self.breaks.disarm()
            locker.mail.put(Stop())
            for job in locker.book.jobs:
                self.end(locker, job)
            locker.join(10)
        assert not locker.is_alive()
        assert locker.failure is None
        self.expect_nothing_held()

    def add(self, n: int, key: bytes | None = None) -> None:
        self.app.execute(ADD, (key, n))

    def add_noted(self, *begun: bool | None) -> list[UUID]:
        """One job for each, in this order; with the note of a dead worker where it is not None. They come at once."""
        with self.app.transaction():
            ids = [row[0] for row in self.app.execute(ADD, (None, len(begun))).fetchall()]
            for id, said in zip(ids, begun, strict=True):
                if said is not None:
                    self.app.execute(
                        "INSERT INTO magik_claims (job_id, worker, backend_pid, backend_start, begun)"
                        " VALUES (%s, 'dead', 1, now(), %s)",
                        (id, said),
                    )
        return ids

    def flags(self) -> int:
        return advisory_locks(self.dsn, "house locker")[TWO_KEYS]

    def take(self, locker: Locker, n: int) -> list[Claimed]:
        """The next `n` jobs that a performer would get."""
        jobs = [locker.work.get(timeout=5) for _ in range(n)]
        assert all(jobs)
        return [job for job in jobs if job]

    def end(self, locker: Locker, job: Claimed) -> None:
        """What a performer does when a job has run."""
        self.app.execute("DELETE FROM magik_jobs WHERE id = %s", (job.id,))
        locker.mail.put(Ended(job, Outcome.FINISHED))

    def notes(self) -> dict[UUID, tuple[int, bool]]:
        """The backend that each note names, and whether the run has begun."""
        rows = self.app.execute("SELECT job_id, backend_pid, begun FROM magik_claims").fetchall()
        return {id: (pid, begun) for id, pid, begun in rows}

    def locks(self) -> int:
        return advisory_locks(self.dsn, "house locker")[ONE_KEY]

    def expect_nothing_held(self) -> None:
        until(lambda: self.locks() == 0, 5, what="no job is locked")

    def expect_nothing_left(self) -> None:
        assert self.app.execute("SELECT count(*) FROM magik_jobs").fetchone() == (0,)
        assert self.notes() == {}

    def expect_all_taken_over(self, locker: Locker, running: list[Claimed]) -> None:
        """Locks, keys and notes of what runs are those of the present connection."""
        locks = len(running) + sum(job.key_lock is not None for job in running)

        def ours() -> bool:
            notes = {job.id: (locker.line.connection.info.backend_pid, True) for job in running}
            return self.notes() == notes and self.locks() == locks

        until(ours, 3, what="all are taken over")
        assert all(locker.book.has_lock(job) for job in running)


@pytest.fixture
def moment() -> Moment:
    """Unless a test says otherwise."""
    return "before"


@pytest.fixture
def noticed() -> Noticed:
    """Unless a test says otherwise."""
    return "noticed"


@pytest.fixture
def house(
    database: str, dsn: str, moment: Moment, noticed: Noticed, monkeypatch: pytest.MonkeyPatch
) -> Iterator[House]:
    url = make_url(database)
    with Proxy(url.host or "", url.port or 0) as proxy, psycopg.connect(dsn, autocommit=True) as app:
        breaks = Breaks(dsn, proxy, moment, noticed)

        def wait(connection: LockingConnection, gen: Any, *args: Any, **options: Any) -> Any:
            return breaks.wait(connection, gen, *args, **options)

        monkeypatch.setattr(LockingConnection, "wait", wait)
        proxied = dsn_of(url.set(port=proxy.port).render_as_string(hide_password=False))
        yield House(dsn, app, proxied, breaks)


def each_break(once: Callable[[int], bool]) -> int:
    """Call `once` for the first exchange, the second, … until it says that there was none left to break at."""
    n = 0
    while once(n):
        n += 1
    return n


@pytest.mark.parametrize(("moment", "noticed"), EACH)
def test_running_jobs_stay_ours_when_the_connection_breaks_again_in_the_middle_of_taking_them_over(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "magik_sa")

    def once(n: int) -> bool:
        caplog.clear()
        house.add(3)
        house.add(1, b"key")
        with house.locker(5) as locker:
            ending, *running = house.take(locker, 4)
            until(lambda: all(begun for _, begun in house.notes().values()), what="the notes say that they have begun")
            house.breaks.arm(0, 1 + n)  # the first while the ended job is released, the second in the next life
            house.end(locker, ending)
            until(lambda: "locking_connection_back" in caplog.text, 5, what="it is back")
            house.expect_all_taken_over(locker, running)
            assert "superseded=0" in caplog.text
        house.expect_nothing_left()
        return caplog.text.partition("locking_connection_back")[0].count("WARNING") == 2

    assert each_break(once) > 8


@pytest.mark.parametrize(("moment", "noticed"), EACH[1:3])
def test_every_job_is_handed_out_once_whatever_a_claim_breaks_at(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """One as new, one that was interrupted, and one that a dead worker had in its hands."""
    caplog.set_level("INFO", "magik_sa")

    def once(n: int) -> bool:
        with house.locker(3) as locker:
            until(lambda: house.flags() == 1, what="it is idle")
            house.breaks.arm(n)
            plain, interrupted, suspect = house.add_noted(None, True, False)
            got = {job.id: job for job in house.take(locker, 3)}
            assert set(got) == {plain, interrupted, suspect}
            assert got[interrupted].interrupted, f"the interruption is forgotten, break {n}"
            for id in (plain, suspect):
                assert not got[id].interrupted, f"an interruption that was none, break {n}"
            house.expect_all_taken_over(locker, list(got.values()))
            assert len(locker.work) == 0
        house.expect_nothing_left()
        return house.broken

    assert each_break(once) > 3  # walk, re-read, the note of the suspect, the flag


@pytest.mark.parametrize(("moment", "noticed"), EACH[1:3])
def test_what_has_ended_leaves_nothing_whatever_its_release_breaks_at(house: House) -> None:
    def once(n: int) -> bool:
        house.add(2)
        house.add(1, b"key")
        with house.locker(3) as locker:
            jobs = house.take(locker, 3)
            house.breaks.arm(n)
            for job in jobs:
                house.end(locker, job)
            until(lambda: not locker.book, 5, what="all are struck from the book")
        house.expect_nothing_left()
        return house.broken

    assert each_break(once) >= 3  # notes, locks, the lock of the key: one after the other, or all at once


@pytest.mark.parametrize(("moment", "noticed"), EACH[1:3])
def test_what_wrote_nothing_is_gone_whatever_its_completion_breaks_at(house: House) -> None:
    def once(n: int) -> bool:
        house.add(2)
        house.add(1, b"key")
        with house.locker(3) as locker:
            jobs = house.take(locker, 3)
            house.breaks.arm(n)
            for job in jobs:
                locker.mail.put(Ended(job, Outcome.PERFORMED))
            until(lambda: not locker.book, 5, what="all are struck from the book")
        house.expect_nothing_left()
        return house.broken

    assert each_break(once) > 3


@pytest.mark.parametrize(("moment", "noticed"), [("before", "noticed"), ("after", "noticed")])
def test_a_stop_gives_back_what_was_not_begun_whatever_it_breaks_at(house: House) -> None:
    def once(n: int) -> bool:
        house.add(2)
        house.add(1, b"key")
        with house.locker(3) as locker:
            until(lambda: len(locker.work) == 3, what="three are handed out, and nobody takes them")
            house.breaks.arm(n)
            locker.mail.put(Stop())
            locker.join(5)
            assert not locker.is_alive(), f"break {n}"
        assert house.app.execute("DELETE FROM magik_jobs").rowcount == 3
        house.app.execute("DELETE FROM magik_claims")
        return house.broken

    assert each_break(once) > 3


@pytest.mark.parametrize(("moment", "noticed"), EACH)
def test_what_waits_for_a_thread_is_claimed_anew_when_the_connection_breaks(house: House) -> None:
    """And is no suspect then: nobody has begun it."""
    house.add(12)
    with house.locker(2) as locker:
        (first,) = house.take(locker, 1)
        locker.work.pace.mean = 0.005  # two threads start 20 such jobs within 50 ms
        house.end(locker, first)
        until(lambda: len(locker.book) == 11, 5, what="the rest is claimed ahead")
        (second,) = house.take(locker, 1)
        house.breaks.arm(0)
        house.end(locker, second)
        until(lambda: not house.breaks.at, 5, what="it breaks, before the others have all been taken")
        rest: list[Claimed] = []
        for _ in range(10):
            rest += house.take(locker, 1)
            house.end(locker, rest[-1])
        assert len({job.id for job in (first, second, *rest)}) == 12
        assert not any(job.suspect or job.interrupted for job in rest)
    assert house.broken
    house.expect_nothing_left()


@pytest.mark.parametrize(("moment", "noticed"), EACH)
@pytest.mark.parametrize("n", range(4))  # notes forgotten, notes that say again "not begun", unlocked, told
def test_what_was_not_begun_has_not_begun_whatever_giving_it_back_breaks_at(
    house: House, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_back, unbroken = Claims.give_back, [n]

    def breaking(claims: Claims, jobs: list[Claimed]) -> None:
        while unbroken:
            house.breaks.arm(unbroken.pop())
        give_back(claims, jobs)

    monkeypatch.setattr(Claims, "give_back", breaking)
    plain, interrupted, suspect = house.add_noted(None, True, False)
    with house.locker(3) as locker:
        until(lambda: not (unbroken or house.breaks.at), 5, what="they have waited for too long, and it breaks")
        got = {job.id: job for job in house.take(locker, 3)}
        told = {id: (job.interrupted, job.suspect) for id, job in got.items()}
        assert told == {plain: (False, False), interrupted: (True, False), suspect: (False, True)}
    assert house.broken
    house.expect_nothing_left()


def locked_by(caplog: pytest.LogCaptureFixture, pattern: str) -> list[int]:
    """The numbers in what the log says of who locks the tables, once a statement has waited for too long."""
    said = until(lambda: re.search(f'locked_by="{pattern}', caplog.text), what="who locks them is named")
    return [int(each) for each in said.groups()]


def test_who_keeps_the_tables_locked_is_named(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(server.LOCKING, "statement_timeout", "200ms")
    with house.locker(1) as locker:
        until(lambda: house.flags() == 1, what="it is idle")
        with psycopg.connect(house.dsn, application_name="backup") as other:
            began = time.monotonic()
            other.execute("LOCK TABLE magik_jobs")
            pid, seconds = locked_by(caplog, r"(\d+) \(backup, (\d+) s\)")
            assert pid == other.info.backend_pid
            assert seconds <= time.monotonic() - began + 0.5, "rounded"
        house.add(1)
        house.take(locker, 1)


def test_who_waits_for_the_tables_and_who_keeps_him_waiting_are_named(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A table that is to be altered while a report reads it is locked for everybody who comes later."""
    monkeypatch.setitem(server.LOCKING, "statement_timeout", "200ms")
    with (
        house.locker(1),
        psycopg.connect(house.dsn, application_name="report") as reader,
        psycopg.connect(house.dsn, autocommit=True, application_name="deploy") as alterer,
    ):
        until(lambda: house.flags() == 1, what="it is idle")
        began = time.monotonic()
        reader.execute("SELECT FROM magik_jobs")
        alterer.pgconn.send_query(b"ALTER TABLE magik_jobs ADD note text")
        first, reading, second, altering = locked_by(caplog, r"(\d+) \(report, (\d+) s\), (\d+) \(deploy, (\d+) s\)")
        assert (first, second) == (reader.info.backend_pid, alterer.info.backend_pid)
        assert altering <= reading <= time.monotonic() - began + 0.5, "rounded"
        alterer.cancel()
        while alterer.pgconn.get_result():
            pass


def test_a_server_that_refuses_what_a_claim_needs_is_not_asked_without_a_pause(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.app.execute("REVOKE INSERT ON magik_claims FROM current_user")
    house.add(1)
    with house.locker(1) as locker:
        until(lambda: "permission denied" in caplog.text, 5, what="it is refused")
        never(lambda: caplog.text.count("locking_connection_lost") > 8, during=1.5, what="a hot loop")
        house.app.execute("GRANT INSERT ON magik_claims TO current_user")
        house.take(locker, 1)


def test_that_it_is_ready_is_said_before_anything_is_claimed(house: House) -> None:
    """The first job may be the end of the process, and its log is to say by what settings it worked. Said once."""
    claimed: list[int] = []

    def announce() -> None:
        row = house.app.execute("SELECT count(*) FROM magik_claims").fetchone() or [0]
        claimed.append(row[0])

    house.add(2)
    with house.locker(1, announce) as locker:
        job = locker.work.get()
        assert job is not None
        house.breaks.sever(locker.line.connection)
        until(lambda: locker.line.lives == 2, what="the connection is back")
        house.end(locker, job)
    assert claimed == [0]
