"""The locker: claims jobs, keeps their locks and notes, and gives them back. Alone on the locking connection."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

import psycopg

from ..claim import Batch, Claimed, LockLost
from ..errors import BootError
from ..failure import headline
from ..logs import say
from ..outcome import Outcome
from ..readable import readable
from ..run import tell
from .book import ASIDE_FOR, KEY_BUSY
from .chores import Chores
from .completer import Completer
from .ear import Ear
from .idle import Look
from .letters import Abandon, Assignment, Ended, Mail, Stop
from .line import Line
from .mailbox import Mailbox
from .stock import Stock
from .tally import Tally
from .unserved import Unserved

AGAIN = {
    Outcome.UNRECORDED: ASIDE_FOR,
    Outcome.SUPERSEDED: 0.0,
}  # seconds until a row is looked at that may be as it was
HEARTBEAT = 10.0  # seconds between statements on the connection while all threads are busy


class Locker(threading.Thread):
    """The thread `magik-locker`. Constructing it starts nothing; everybody else speaks to it through `mail`.

    `announce` is called there, once: when it listens, and before it claims anything.
    """

    def __init__(self, assignment: Assignment, announce: Callable[[], None] = lambda: None) -> None:
        super().__init__(name="magik-locker", daemon=True)
        self._announce = announce
        self.assignment, self.stock = assignment, Stock(assignment.concurrency)
        self.work, self.book = self.stock.tray, self.stock.book
        self.mail: Mail = Mailbox()
        self.ready = threading.Event()
        self.failure: BaseException | None = None
        self._queues = deque(assignment.queues)
        self._stopping = self._told = False  # that it stops, in its row
        self._ended: list[Claimed] = []
        self._unbegun: list[Claimed] = []  # suspects of a life before, whose notes may say that they have begun
        self.completer, self.tally = Completer(), Tally(assignment.queues)
        self.ear = Ear(assignment.queues)
        self.line = Line(assignment, self.ear.hear)
        self._chores = Chores(self.line, self.stock, self.ear, self.tally, self.completer)
        self._unserved = Unserved()
        self._next_turn = time.monotonic()

    def seconds_late(self) -> float:
        """From another thread: since when a turn is under way, or overdue."""
        return max(0.0, time.monotonic() - self._next_turn)

    def run(self) -> None:
        try:
            while not self._over():
                self._live()
        except BaseException as error:
            self.failure = error
            say(logging.CRITICAL, "locker_died", error=headline(error))
        finally:
            self.work.close()

    def _over(self) -> bool:
        return self._stopping and not (self.book or self._ended or self._unbegun)

    def _live(self) -> None:
        """One life of the locking connection: take again what still runs, work until the end or until it breaks."""
        try:
            self.line.open()
            if not self.ready.is_set():
                self._announce()
                self.ready.set()
            self._take_over()
            while not self._over():
                self._turn()
                self.line.worked()
            self.line.unregister()
        except (psycopg.Error, LockLost, BootError) as error:
            pause = self.line.broken(error, running=len(self.book))
            self.line.close()  # whatever it was: the locks of a failed statement stay held, and go with the connection
            self._drop_unstarted()
            readable([self.mail], pause)
            self._read_letters()
        finally:
            self.line.close()

    def _take_over(self) -> None:
        """After a reconnect: the locks and notes of what still runs. What is somebody else's now is superseded."""
        self._read_letters()
        ended = {job.id for job in self._ended}
        running = [job for job in self.book.jobs if job.id not in ended]
        ours = self.line.take_over(running, self._ended, self._unbegun)
        self.stock.strike(self._ended)
        self._ended.clear()
        self._unbegun.clear()
        self.tally.forgotten()
        self._told = False
        lost = [job for job in self.book.jobs if job.id not in ours]
        self.book.lose(lost)
        if self.line.lives > 1:
            say(logging.INFO, "locking_connection_back", kept=len(ours), superseded=len(lost))

    def _drop_unstarted(self) -> None:
        """Their locks are gone with the connection. Their notes go in the next life, but what tells of a run before.

        That of a suspect may have been told to say that it begins.
        """
        dropped = self.stock.drop()
        self._ended += [job for job in dropped if not (job.suspect or job.interrupted)]
        self._unbegun += [job for job in dropped if job.suspect]

    # ---- one turn

    def _turn(self) -> None:
        self._next_turn = time.monotonic()
        self._read_letters()
        self._let_ends_gather()
        self._complete()
        self._release()
        if self._over():
            return
        self._chores.do()  # here too: with mail at every turn there is no wait in which they would be done
        if self._stopping or not self.stock.room():
            self._sleep_busy()
        elif not self._claim_round():
            self._sleep_idle() if self.stock.free() > 0 else self._sleep_busy()

    def _let_ends_gather(self) -> None:
        """While the threads have enough to do what has ended is given back in lots: each costs some statements.

        Not where somebody may wait for it, a job of the same key or the end of the worker.
        """
        if not self._stopping and not self._is_waited_for():
            self.stock.wait_at_leisure()
            self._read_letters()

    def _is_waited_for(self) -> bool:
        return any(job.key_lock is not None for job in (*self._ended, *self.completer.due))

    def _claim_round(self) -> bool:
        """Ask each queue once; the first, which changes each round, has the free threads. Is there more to look at?

        There may be behind candidates that were not to be run now, too.
        """
        order = list(self._queues)
        self._queues.rotate(-1)
        self._reconsider()
        batches = [self._claim(queue, n) for queue in order if (n := self.stock.share(len(order)))]
        self.stock.filled()
        found = sum(len(batch.jobs) for batch in batches)
        self.ear.led_to(found)
        if found:
            self.line.idle.lower_flags(tell=self.stock.free() <= 0)
        return any(batch.candidates for batch in batches)

    def _reconsider(self) -> None:
        """What may have been walked past: all that we were told of, and what has been aside for long enough."""
        self.line.claims.walks.owe(self.ear.looks())
        self.line.claims.walks.step_back(self.book.back())

    def _claim(self, queue: str, n: int) -> Batch:
        began = time.monotonic()
        batch = self.line.claims.claim(queue, n, self.assignment.known, self.book.busy)
        self.book.put_aside(batch.refused, KEY_BUSY)
        self.book.put_touched_aside(batch.touched, time.monotonic() - began)
        self.stock.enter(batch.jobs)
        return batch

    # ---- waiting

    def _sleep_busy(self) -> None:
        """There is nothing to claim for, or the worker stops: only mail counts, and what has its time."""
        beat_at = time.monotonic() + HEARTBEAT
        while not self._mail_within(self._chores.seconds(), max(0.0, beat_at - time.monotonic())):
            if self._chores.seconds() == 0:
                return
            if time.monotonic() >= beat_at:
                self.line.connection.execute("SELECT 1")
                beat_at = time.monotonic() + HEARTBEAT

    def _sleep_idle(self) -> None:
        """Nothing is due: raise the flags, look once more, then sleep until something is said or due."""
        if self.line.idle.raise_flags():
            self.ear.tell_of_all()
            if self._claim_round():
                return
        self._unserved.tell(self.line)
        self.line.idle.settle(self.assignment.known)
        while not self.ear.is_told or self.ear.seconds_shut():
            self._chores.do()
            waits = (self.book.seconds_aside(), self.line.claims.walks.seconds_to_full())
            if self._mail_within(self.line.idle.seconds(), self._chores.seconds(), *waits):
                return
            if (look := self.line.idle.tick(self.assignment.known)) is not Look.NO:
                self.ear.tell_of_all()
            if look is Look.DIED:
                self.line.claims.walks.insist(self._queues)
            if 0 in (self.book.seconds_aside(), self.line.claims.walks.seconds_to_full(), self.completer.seconds()):
                return

    def _mail_within(self, *waits: float | None) -> bool:
        """Sleep for the shortest of `waits`, or shorter; whether there is mail. The socket is listened to meanwhile."""
        shortest, shut = min(wait for wait in waits if wait is not None), self.ear.seconds_shut()
        bell, socket = self.mail.fileno(), self.line.connection.fileno()
        self._next_turn = time.monotonic() + shortest
        woken = readable([bell], min(shortest, shut)) if shut else readable([bell, socket], shortest)
        self._next_turn = time.monotonic()
        if socket in woken:
            self.line.listen()
        return bell in woken

    # ---- mail

    def _read_letters(self) -> None:
        """Only what needs no connection; the rest follows in `_release`."""
        for letter in self.mail.take():
            if isinstance(letter, Ended):
                self._read_end(letter)
            elif isinstance(letter, Stop):
                self._stopping = True
            else:
                self._abandon(letter)

    def _read_end(self, letter: Ended) -> None:
        if letter.outcome is Outcome.PERFORMED:
            self.completer.add(letter)
            return
        self._ended.append(letter.job)
        self.tally.note(letter)
        if (seconds := AGAIN.get(letter.outcome)) is not None:
            self.book.put_aside([letter.job], seconds)

    def _complete(self) -> None:
        """Commit the ends of those that wrote nothing."""
        for ended in self.completer.complete(self.line.connection, self.line.names):
            tell(ended.job, ended.outcome, ended.took)
            self._read_end(ended)

    def _release(self) -> None:
        """Committed, so: delete the notes, then unlock, then strike from the book, in this order."""
        if self._stopping:
            self.line.idle.lower_flags(tell=True)
            self._chores.give_back(self.stock.take_back())
            if self.book and not self._told:
                self._told = True
                self.line.tell_draining()
        if self._ended:
            self.line.claims.release([job for job in self._ended if self.book.has_lock(job)])
            self.stock.strike(self._ended)
            self._ended.clear()

    def _abandon(self, letter: Abandon) -> None:
        """Without a connection the notes stay, and tell of an interruption: nobody can say that it was a deploy."""
        with contextlib.suppress(psycopg.Error):
            self.line.forget([job for job in self.book.jobs if self.book.has_lock(job)])
        letter.done.set()
