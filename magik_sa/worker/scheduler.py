"""The scheduler: looks each second for ticks that are due by the database's clock, and fires them."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from .. import timetable, tries
from ..failure import first_line
from ..job import Job
from ..lent import Lent
from ..logs import say
from ..server import SILENT_AFTER
from ..statement import hang_up
from ..ticks import Contended, ScheduleFailed, Tick, fire, look
from ..timeout import Limits
from ..timetable import Entry, Strange
from .rest import LONGEST_AFTER_LIMIT, Rests, described

LOOK_EVERY = 1.0  # seconds at most between two looks: a row that was moved, resumed or changed is noticed
STRANGE_EVERY = 30.0  # seconds between two looks for rows that say something else
NOBODYS_AFTER = 2 * LONGEST_AFTER_LIMIT  # seconds that one is due and untried until nobody runs it: no rest is longer
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # seconds before the scheduler tries again after losing its connection
AT_ONCE = 20  # ticks between two looks at most: other workers fire meanwhile what this one saw due
GRACE = 10.0  # seconds over the limit of an on_schedule until its connection is cut, if interrupts did not end it
LEAVE = 0.3  # seconds that the scheduler may take to end, and as many again once its connection is cut


class Scheduler(threading.Thread):
    """The thread `magik-scheduler`. Ends when it is told to, and for nothing that a schedule or the database does."""

    def __init__(
        self,
        known: Mapping[str, type[Job]],
        entries: Mapping[str, Entry],
        engine: Engine,
        sessions: scoped_session[Session],
        limits: Limits,
    ) -> None:
        super().__init__(name="magik-scheduler", daemon=True)
        self.known, self.entries = known, entries
        self._engine, self._sessions, self._limits = engine, sessions, limits
        self._end = threading.Event()
        self._rests = Rests()
        self._noted: list[tuple[Entry, str]] = []  # tries that ended, and whose notes have to be taken back
        self._written = False
        self._pause = FIRST_PAUSE
        self._strange: dict[Strange, float] = {}  # and when each was first seen so
        self._strange_at = 0.0
        self._line: Any = None
        self._until: float | None = None

    def run(self) -> None:
        while not self._end.is_set():
            try:
                self._live()
            except BaseException as error:
                pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE)
                say(logging.WARNING, "scheduler_interrupted", error=first_line(error), next_try_s=round(pause, 2))
                self._end.wait(pause * random.uniform(0.8, 1.2))

    def write(self) -> None:
        """Make the rows say what the classes known here say. Before `start`: the thread does it if this fails."""
        try:
            with self._engine.connect() as connection:
                self._write(connection)
        except Exception as error:
            say(logging.WARNING, "schedules_not_written", error=first_line(error))

    def stop(self) -> None:
        """Fire nothing more. Returns at once."""
        self._end.set()

    def leave(self) -> bool:
        """After `stop`: wait for its end; whether it has ended. What still runs is cut off, and its tick stays due."""
        self.join(LEAVE)
        if self.is_alive():
            hang_up(self._line)
            self.join(LEAVE)
        return not self.is_alive()

    def hang_up_if_silent(self) -> bool:
        """Asked by the watchdog: has the database, or an on_schedule, taken longer than it may?"""
        until = self._until
        if until is None or time.monotonic() < until:
            return False
        hang_up(self._line)
        return True

    # ---- one life of the connection

    def _live(self) -> None:
        lent = Lent(self._engine)
        try:
            if not self._written:
                self._write(lent.take())
            while not self._end.is_set():
                self._turn(lent)
                self._pause = FIRST_PAUSE
        finally:
            lent.close()

    def _write(self, connection: Connection) -> None:
        with self._within(connection):
            timetable.write(connection, self.known, self.entries, self._rests.begin)
        self._written = True

    def _turn(self, lent: Lent) -> None:
        """Look, fire what is due, and sleep until the next tick or look. After one has fired, or failed, no sleep."""
        connection = lent.take()
        self._take_back(connection)
        self._look_for_strange(connection)
        with self._within(connection):
            ticks = look(connection, self.entries)
        due = self._in_turn([tick for tick in ticks if tick.seconds <= 0 and self._rests.over(tick)])
        if not sum(self._try(tick, lent) for tick in due[:AT_ONCE]):
            self._end.wait(min([LOOK_EVERY, *(tick.seconds for tick in ticks if tick.seconds > 0)]))

    def _in_turn(self, due: list[Tick]) -> list[Tick]:
        """In an order of this worker's own, so that several share many ticks; last what has failed, or hung, before."""
        random.shuffle(due)
        return sorted(due, key=lambda tick: tick.entry in self._rests)

    def _try(self, tick: Tick, lent: Lent) -> bool:
        """Note it, fire it, and take the note back where the claim did not. Whether another look may find more."""
        if self._end.is_set():
            return False
        connection = lent.take()
        with self._within(connection):
            begun = tries.begin(tick, connection)
        if begun is not None and begun.interrupted:
            told = {"deaths": begun.deaths, "next_try_s": round(begun.rest or 0.0)}
            say(logging.WARNING, "schedule_interrupted", **described(tick.entry, tick), **told)
        if begun is None or begun.note is None:
            return False
        self._noted.append((tick.entry, begun.note))
        more = self._fire(tick, begun.note, connection)
        if self._noted:
            self._take_back(lent.take())
        return more

    def _take_back(self, connection: Connection) -> None:
        """Of tries that ended without their tick, also those during which the connection was lost."""
        for noted in list(self._noted):
            with self._within(connection):
                if tries.end(*noted, connection):
                    self._noted.remove(noted)

    def _fire(self, tick: Tick, note: str, connection: Connection) -> bool:
        """Whether it has fired, or failed and rests."""
        try:
            with self._within(connection, tick.limit.total_seconds() + GRACE):
                jobs = fire(tick, note, self._sessions, connection, self._limits)
        except Contended:
            say(logging.INFO, "schedule_contended", **described(tick.entry, tick))
            return False
        except ScheduleFailed as failure:
            if self._end.is_set():
                say(logging.WARNING, "schedule_cut_off", **described(tick.entry, tick))
            else:
                self._rests.begin(tick.entry, failure.__cause__ or failure, tick)
            return True
        if jobs is not None:
            self._noted.pop()
            self._rests.end(tick.entry)
            say(logging.INFO, "schedule_fired", **described(tick.entry, tick), count=jobs)
        return jobs is not None

    @contextmanager
    def _within(self, connection: Connection, more: float = 0.0) -> Iterator[None]:
        """The watchdog hangs up where this takes too long: a line gone silent would keep the thread for ever."""
        self._line = connection.connection.dbapi_connection
        self._until = time.monotonic() + SILENT_AFTER + more
        try:
            yield
        finally:
            self._until = None

    # ---- rows that say something else

    def _look_for_strange(self, connection: Connection) -> None:
        """Say which schedules this worker does not run, and adopt those that nobody tries to run any more."""
        now = time.monotonic()
        if now < self._strange_at:
            return
        self._strange_at = now + STRANGE_EVERY
        with self._within(connection):
            found = timetable.strange(connection, self.entries)
        seen = {row: self._strange.get(row, now) for row in found}
        for row in [row for row, since in seen.items() if row.due and now - since >= NOBODYS_AFTER]:
            if timetable.adopt(connection, self.entries[row.name], row):
                say(logging.WARNING, "schedule_adopted", **described(self.entries[row.name], None))
        told = {row.name for row in self._strange}
        if new := sorted(row.name for row in found if row.name not in told):
            say(logging.WARNING, "schedules_declared_otherwise", schedules=",".join(new))
        self._strange = seen
