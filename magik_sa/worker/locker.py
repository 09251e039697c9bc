"""The locker: claims jobs, keeps their locks and notes, and gives them back. Alone on the locking connection."""

from __future__ import annotations

import contextlib
import logging
import random
import select
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue

import psycopg

from .. import names, wake
from ..claim import Claimed, Claims, LockLost, Owner
from ..errors import BootError, WorkerError
from ..failure import first_line, headline
from ..logs import say
from ..outcome import Outcome
from ..server import connect_locking
from .book import PROBATION, Book
from .idle import Idle
from .letters import Abandon, Assignment, Ended, Mail, Stop
from .mailbox import Mailbox

HEARTBEAT = 10.0  # seconds between statements on the connection while all threads are busy
LONGEST_PAUSE = 5.0  # seconds between two attempts to connect
UNSERVED_EVERY = 60.0  # seconds between two looks for due jobs of classes that nobody declared here


class Locker(threading.Thread):
    """The thread `magik-locker`. Constructing it starts nothing; everybody else speaks to it through `mail`."""

    def __init__(self, assignment: Assignment, work: SimpleQueue[Claimed | None]) -> None:
        super().__init__(name="magik-locker", daemon=True)
        self.assignment, self.work = assignment, work
        self.mail: Mail = Mailbox()
        self.ready = threading.Event()
        self.failure: BaseException | None = None
        self.book = Book()
        self._queues = deque(assignment.queues)
        self._stopping = self._noticed = False
        self._ended: list[Claimed] = []
        self._owner: Owner | None = None
        self.lives = 0  # of the locking connection
        self._unserved_at = 0.0

    def run(self) -> None:
        try:
            while not self._over():
                self._live()
        except BaseException as error:
            self.failure = error
            say(logging.CRITICAL, "locker_died", error=headline(error))
        finally:
            for _ in range(self.assignment.concurrency):
                self.work.put(None)

    def _over(self) -> bool:
        return self._stopping and not self.book

    def hang_up_if_silent(self) -> bool:
        """Asked by the watchdog: has the locking connection waited for an answer for too long?"""
        return self.lives > 0 and self.connection.hang_up_if_silent()

    # ---- one life of the locking connection

    def _live(self) -> None:
        """Connect, take again what still runs, work until the end or until the connection breaks."""
        if not self._connect():
            return
        try:
            self._take_again()
            while not self._over():
                self._turn()
            wake.unregister(self.connection, self.names, self.claims.owner)
        except (psycopg.Error, LockLost) as error:
            # whatever it was: the locks of a failed statement stay held, so all of them go with the connection
            say(logging.WARNING, "locking_connection_lost", error=headline(error), running=len(self.book))
        finally:
            self.connection.close()

    def _connect(self) -> bool:
        """At once, then with growing, jittered pauses, up to the bound. False if told to stop with nothing running."""
        started, pause = time.monotonic(), 0.05
        while not self._over():
            try:
                self._open()
                return True
            except (psycopg.Error, BootError) as error:
                if time.monotonic() - started > self.assignment.database_timeout:
                    raise WorkerError("MAGIK_DATABASE_LOST", f"No connection: {first_line(error)}.") from error
                say(logging.WARNING, "database_unreachable", error=headline(error), next_try_s=round(pause, 2))
            select.select([self.mail], [], [], pause * random.uniform(0.8, 1.2))
            pause = min(pause * 2, LONGEST_PAUSE)
            self._read_letters()
        return False

    def _open(self) -> None:
        told = self.assignment
        connection = connect_locking(told.conninfo, told.app_name)
        self._pid = connection.info.backend_pid  # before LISTEN: what is heard may come with the very next statement
        try:
            found = names.find(connection, told.schema)
            connection.add_notify_handler(lambda note: self._hear(note.pid, note.payload))
            connection.execute(f"LISTEN {found.channel}".encode())
            owner = wake.register(connection, found, told.worker, told.queues)
        except BaseException:
            connection.close()
            raise
        self.connection, self.names, self.lives = connection, found, self.lives + 1
        self.claims = Claims(connection, found, owner, told.worker)
        self.idle = Idle(connection, found, told.queues, told.poll_interval)
        self.ready.set()

    def _take_again(self) -> None:
        """After a reconnect: the locks and notes of what still runs. What is somebody else's now is superseded."""
        self._read_letters()
        if self._owner is not None:
            self._take_over(self._owner)
        self._owner = self.claims.owner  # not before: the notes name the one before until they are taken over

    def _take_over(self, previous: Owner) -> None:
        wake.end_session(self.connection, previous)
        Claims(self.connection, self.names, previous, "").forget([job.id for job in self._ended])
        self.book.strike(self._ended)
        self._ended.clear()
        ours = self.claims.take_again(self.book.jobs, previous)
        lost = [job.id for job in self.book.jobs if job.id not in ours]
        self.book.lose(lost)
        say(logging.INFO, "locking_connection_back", kept=len(ours), superseded=len(lost))

    # ---- one turn

    def _turn(self) -> None:
        self._read_letters()
        self._release()
        if self._over():
            return
        if self._stopping or not self._free():
            self._sleep_busy()
        elif not self._claim_round():
            self._sleep_idle()

    def _free(self) -> int:
        return self.assignment.concurrency - len(self.book)

    def _claim_round(self) -> bool:
        """Ask each queue once, the first for all free threads; the first queue changes each round. Were there jobs?"""
        self._noticed, found, order = False, 0, list(self._queues)
        self._queues.rotate(-1)
        for queue in order:
            if free := self._free():
                found += self._claim(queue, free)
        if found:
            self.idle.lower_flags(tell=not self._free())
        return bool(found)

    def _claim(self, queue: str, n: int) -> int:
        batch = self.claims.claim(queue, n, self.assignment.known, self.book.busy)
        self.book.put_aside(batch.refused)
        admitted, waiting = self.book.admit(batch.jobs)
        if waiting:
            self.claims.give_back(waiting)
            self.book.put_aside([job.id for job in waiting], PROBATION)
        self.book.enter(admitted)
        if marked := [job.id for job in admitted if job.suspect or job.interrupted]:
            self.claims.begun(marked)
        for job in admitted:
            self.work.put(job)
        return len(admitted)

    # ---- waiting

    def _sleep_busy(self) -> None:
        """No thread is free, or the worker stops: only mail counts, and the notes of runs that last."""
        while not self._mail_within(self.book.seconds_to_mark(), HEARTBEAT):
            if not self._mark():
                self.connection.execute("SELECT 1")

    def _sleep_idle(self) -> None:
        """Nothing is due: raise the flags, look once more, then sleep until something is said or due."""
        if self.idle.raise_flags() and self._claim_round():
            return
        self._tell_unserved()
        self.idle.settle(self.assignment.known)
        while not self._noticed:
            self._mark()
            waits = (self.idle.seconds(), self.book.seconds_to_mark(), self.book.seconds_aside())
            if self._mail_within(*waits):
                return
            if self.idle.tick(self.assignment.known) or self.book.seconds_aside() == 0:
                return

    def _mail_within(self, *waits: float | None) -> bool:
        """Sleep for the shortest of `waits`; whether there is mail. The socket is listened to meanwhile."""
        shortest = min(wait for wait in waits if wait is not None)
        bell, socket = self.mail.fileno(), self.connection.fileno()
        woken, _, _ = select.select([bell, socket], [], [], shortest)
        if socket in woken:
            self._listen()
        return bell in woken

    def _mark(self) -> bool:
        """Say of the runs that have lasted a while that they have begun."""
        if marked := self.book.marked_now():
            self.claims.begun(marked)
        return bool(marked)

    def _listen(self) -> None:
        """Take what the socket brings (statements take their own)."""
        self.connection.pgconn.consume_input()
        while note := self.connection.pgconn.notifies():
            self._hear(note.be_pid, note.extra.decode("utf-8", "replace"))

    def _hear(self, pid: int, queue: str) -> None:
        self._noticed |= queue in self._queues and pid != self._pid

    def _tell_unserved(self) -> None:
        if time.monotonic() >= self._unserved_at:
            self._unserved_at = time.monotonic() + UNSERVED_EVERY
            if classes := self.claims.unserved(self.assignment.queues, self.assignment.known):
                say(logging.WARNING, "jobs_of_unknown_classes", classes=", ".join(classes))

    # ---- mail

    def _read_letters(self) -> None:
        """Only what needs no connection; the rest follows in `_release`."""
        for letter in self.mail.take():
            if isinstance(letter, Ended):
                self._ended.append(letter.job)
                if letter.outcome is Outcome.UNRECORDED:  # as it was, and due: not again in the same instant
                    self.book.put_aside([letter.job.id])
            elif isinstance(letter, Stop):
                self._stopping = True
            else:
                self._abandon(letter)

    def _release(self) -> None:
        """Committed, so: delete the notes, then unlock, then strike from the book, in this order."""
        if self._stopping:
            self._give_back_unstarted()
        if self._ended:
            self.claims.release([job for job in self._ended if self.book.has_lock(job)])
            self.book.strike(self._ended)
            self._ended.clear()

    def _give_back_unstarted(self) -> None:
        unstarted: list[Claimed] = []
        try:
            while job := self.work.get_nowait():
                unstarted.append(job)
        except Empty:
            pass
        self.idle.lower_flags(tell=True)
        if unstarted:
            self.claims.give_back([job for job in unstarted if self.book.has_lock(job)])
            self.book.strike(unstarted)
            wake.notify(self.connection, self.names, {job.row["queue"] for job in unstarted})

    def _abandon(self, letter: Abandon) -> None:
        """Without a connection the notes stay, and tell of an interruption: nobody can say that it was a deploy."""
        with contextlib.suppress(psycopg.Error):
            self.claims.forget([job.id for job in self.book.jobs if self.book.has_lock(job)])
        letter.done.set()
