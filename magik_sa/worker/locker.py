"""The locker: claims jobs, keeps their locks and notes, and gives them back. Alone on the locking connection."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue

import psycopg

from ..claim import Claimed, LockLost
from ..errors import BootError
from ..failure import headline
from ..logs import say
from ..outcome import Outcome
from ..readable import readable
from .book import KEY_BUSY, PROBATION, Book
from .letters import Abandon, Assignment, Ended, Mail, Stop
from .line import Line
from .mailbox import Mailbox

HEARTBEAT = 10.0  # seconds between statements on the connection while all threads are busy
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
        self.line = Line(assignment, self._hear)
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

    def _live(self) -> None:
        """One life of the locking connection: take again what still runs, work until the end or until it breaks."""
        try:
            self.line.open()
            self.ready.set()
            self._take_over()
            while not self._over():
                self._turn()
                self.line.worked()
            self.line.unregister()
        except (psycopg.Error, LockLost, BootError) as error:
            pause = self.line.broken(error, running=len(self.book))
            self.line.close()  # whatever it was: the locks of a failed statement stay held, and go with the connection
            readable([self.mail], pause)
            self._read_letters()
        finally:
            self.line.close()

    def _take_over(self) -> None:
        """After a reconnect: the locks and notes of what still runs. What is somebody else's now is superseded."""
        self._read_letters()
        ended = {job.id for job in self._ended}
        ours = self.line.take_over([job for job in self.book.jobs if job.id not in ended], self._ended)
        self.book.strike(self._ended)
        self._ended.clear()
        lost = [job.id for job in self.book.jobs if job.id not in ours]
        self.book.lose(lost)
        if self.line.lives > 1:
            say(logging.INFO, "locking_connection_back", kept=len(ours), superseded=len(lost))

    # ---- one turn

    def _turn(self) -> None:
        self._read_letters()
        self._release()
        if self._over():
            return
        self._mark()  # here too: with mail at every turn there is no wait in which it would be done
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
            self.line.idle.lower_flags(tell=not self._free())
        return bool(found)

    def _claim(self, queue: str, n: int) -> int:
        batch = self.line.claims.claim(queue, n, self.assignment.known, self.book.busy)
        self.book.put_aside(batch.refused, KEY_BUSY)
        admitted, waiting = self.book.admit(batch.jobs)
        if waiting:
            self.line.claims.give_back(waiting)
            self.book.put_aside([job.id for job in waiting], PROBATION)
        if suspects := [job.id for job in admitted if job.suspect]:
            self.line.claims.begun(suspects)
        self.book.enter(admitted)  # only now, and nothing can break before they are handed out
        for job in admitted:
            self.work.put(job)
        return len(admitted)

    # ---- waiting

    def _sleep_busy(self) -> None:
        """No thread is free, or the worker stops: only mail counts, and the notes of runs that last."""
        while not self._mail_within(self.book.seconds_to_mark(), HEARTBEAT):
            if not self._mark():
                self.line.connection.execute("SELECT 1")

    def _sleep_idle(self) -> None:
        """Nothing is due: raise the flags, look once more, then sleep until something is said or due."""
        if self.line.idle.raise_flags() and self._claim_round():
            return
        self._tell_unserved()
        self.line.idle.settle(self.assignment.known)
        while not self._noticed:
            self._mark()
            waits = (self.line.idle.seconds(), self.book.seconds_to_mark(), self.book.seconds_aside())
            if self._mail_within(*waits):
                return
            if self.line.idle.tick(self.assignment.known) or self.book.seconds_aside() == 0:
                return

    def _mail_within(self, *waits: float | None) -> bool:
        """Sleep for the shortest of `waits`; whether there is mail. The socket is listened to meanwhile."""
        shortest = min(wait for wait in waits if wait is not None)
        bell, socket = self.mail.fileno(), self.line.connection.fileno()
        woken = readable([bell, socket], shortest)
        if socket in woken:
            self.line.listen()
        return bell in woken

    def _mark(self) -> bool:
        """Say of the runs that have lasted a while that they have begun."""
        if due := self.book.due_to_mark():
            self.line.claims.begun(due)
            self.book.mark(due)
        return bool(due)

    def _hear(self, queue: str) -> None:
        self._noticed |= queue in self._queues

    def _tell_unserved(self) -> None:
        if time.monotonic() >= self._unserved_at:
            self._unserved_at = time.monotonic() + UNSERVED_EVERY
            if classes := self.line.claims.unserved(self.assignment.queues, self.assignment.known):
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
            self.line.claims.release([job for job in self._ended if self.book.has_lock(job)])
            self.book.strike(self._ended)
            self._ended.clear()

    def _give_back_unstarted(self) -> None:
        unstarted: list[Claimed] = []
        try:
            while job := self.work.get_nowait():
                unstarted.append(job)
        except Empty:
            pass
        locked = [job for job in unstarted if self.book.has_lock(job)]
        self.book.strike(unstarted)  # first: if the connection breaks now, that is what gives them back
        self.line.idle.lower_flags(tell=True)
        if unstarted:
            self.line.claims.give_back(locked)
            self.line.tell({job.row["queue"] for job in unstarted})

    def _abandon(self, letter: Abandon) -> None:
        """Without a connection the notes stay, and tell of an interruption: nobody can say that it was a deploy."""
        with contextlib.suppress(psycopg.Error):
            self.line.forget([job for job in self.book.jobs if self.book.has_lock(job)])
        letter.done.set()
