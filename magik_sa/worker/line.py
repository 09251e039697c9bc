"""The locking connection through its lives: opened, broken, opened again, and what it held taken over."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Collection
from uuid import UUID

import psycopg

from .. import names, wake
from ..claim import Claimed, Claims, LockLost, Owner
from ..claim.notes import Notes
from ..errors import BootError, WorkerError
from ..failure import first_line, headline
from ..logs import say
from ..names import Names
from ..server import LockingConnection, connect_locking
from .idle import Idle
from .letters import Assignment
from .tally import Tally, publish, say_draining

SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # seconds between two attempts in succession; there is none before the first

# A statement of ours was cancelled: who holds a lock on the tables that keeps it waiting, or has asked for one (what
# comes later queues behind that), and who keeps him waiting. xact_start is NULL to a role without pg_monitor.
LOCKED_BY = """
WITH strong AS (
  SELECT pid, granted FROM pg_locks
   WHERE relation = ANY(%s::text[]::regclass[]) AND pid <> pg_backend_pid()
     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
     AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'))
SELECT pid, coalesce(nullif(application_name, ''), 'no name'),
       extract(epoch FROM clock_timestamp() - xact_start)::int
  FROM pg_stat_activity
 WHERE pid IN (SELECT pid FROM strong UNION SELECT unnest(pg_blocking_pids(pid)) FROM strong WHERE NOT granted)
 ORDER BY xact_start LIMIT 3"""


class Line:
    """What the locker speaks to the server by; the attributes below are those of its present life."""

    connection: LockingConnection
    names: Names
    claims: Claims
    idle: Idle

    def __init__(self, assignment: Assignment, hear: Callable[[str], None]) -> None:
        self.assignment, self._hear = assignment, hear
        self.lives = 0
        self._owners: list[Owner] = []  # every session of ours that the notes of the jobs in hand may name
        self._failures = 0  # in succession
        self._opened = 0.0
        self._out_of_reach_since: float | None = None

    def open(self) -> None:
        """Begin a life: connect, LISTEN, and say who we are. Raises `psycopg.Error` or `BootError`."""
        self._out_of_reach_since = self._out_of_reach_since or time.monotonic()
        told = self.assignment
        connection = connect_locking(told.conninfo, told.app_name)
        pid = connection.info.backend_pid  # before LISTEN: what is heard may come with the very next statement
        try:
            found = names.find(connection, told.schema)
            # Not add_notify_handler: where the server does not know its encoding, no text may be what is notified.
            connection.pgconn.notify_handler = lambda note: self._heard(note.be_pid, pid, note.extra)
            connection.execute(f"LISTEN {found.channel}".encode())
            owner = wake.register(connection, found, told.worker, told.queues, told.threads, told.pool)
        except BaseException:
            connection.close()
            raise
        self.connection, self.names, self.lives = connection, found, self.lives + 1
        self.claims = Claims(connection, found, owner, told.worker, told.poll_interval)
        self.idle = Idle(connection, found, told.queues, told.poll_interval, self.claims.walks)
        self._opened, self._out_of_reach_since = time.monotonic(), None

    def take_over(
        self, running: Collection[Claimed], ended: Collection[Claimed], unbegun: Collection[Claimed]
    ) -> set[UUID]:
        """Make what runs this life's own, and forget what has ended; the ids of the jobs that are still ours.

        `unbegun` are suspects that were to begin: their notes say again that they have not.

        The notes may name any of the lives since they were last known to be ours: each of those may have broken
        before it took them over, or when it had and did not learn of it. Each may also still hold the locks.
        """
        before, self._owners = self._owners, [*self._owners, self.claims.owner]
        for owner in before:
            wake.end_session(self.connection, self.names, owner, self.assignment.worker)
        self._forget(ended, before)
        for owner in before:
            self._notes(owner).not_begun([job.id for job in unbegun])
        ours = self.claims.take_again(running, before)
        self._owners = [self.claims.owner]
        return ours

    def forget(self, jobs: Collection[Claimed]) -> None:
        """Delete the notes of these jobs, whichever of our sessions they name."""
        self._forget(jobs, self._owners)

    def _forget(self, jobs: Collection[Claimed], owners: Collection[Owner]) -> None:
        for owner in owners:
            self._notes(owner).forget([job.id for job in jobs])

    def _notes(self, owner: Owner) -> Notes:
        return Notes(self.connection, self.names, owner)

    # ---- what is said there

    def listen(self) -> None:
        """Take what the socket brings (statements take their own)."""
        self.connection.pgconn.consume_input()
        while note := self.connection.pgconn.notifies():
            self._heard(note.be_pid, self.connection.info.backend_pid, note.extra)

    def _heard(self, speaker: int, ourselves: int, queue: bytes) -> None:
        if speaker != ourselves:
            self._hear(queue.decode("utf-8", "replace"))

    def tell(self, queues: Collection[str]) -> None:
        """Ask the other workers of these queues to look."""
        wake.notify(self.connection, self.names, queues)

    def paused(self, queues: Collection[str]) -> set[str]:
        """Those of these queues that are paused."""
        return wake.paused(self.connection, self.names, queues)

    def tell_ended(self, tally: Tally) -> None:
        """Say in our row what has ended of late; later, where somebody keeps the table locked."""
        publish(self.connection, self.names, self.claims.owner, tally)

    def tell_draining(self) -> None:
        """Say there that this worker ends, for people."""
        say_draining(self.connection, self.names, self.claims.owner)

    # ---- its end

    def worked(self) -> None:
        """This life is good for something: should it break, another may begin at once."""
        self._failures = 0

    def broken(self, error: psycopg.Error | LockLost | BootError, running: int) -> float:
        """Say so; the seconds to wait before the next `open`: none at first, then growing, with jitter.

        Raises `WorkerError` ``MAGIK_DATABASE_LOST`` when the server has been out of reach for too long.
        """
        pause = self._pause()
        if self._out_of_reach_since is None:
            say(
                logging.WARNING,
                "locking_connection_lost",
                error=headline(error),
                locked_by=self._locked_by(error),
                running=running,
            )
        elif time.monotonic() - self._out_of_reach_since > self.assignment.database_timeout:
            raise WorkerError("MAGIK_DATABASE_LOST", f"No connection: {first_line(error)}.") from error
        else:
            pause = pause or SHORTEST_PAUSE
            say(logging.WARNING, "database_unreachable", error=headline(error), next_try_s=round(pause, 2))
        return pause

    def _pause(self) -> float:
        if self._out_of_reach_since is None and time.monotonic() - self._opened > LONGEST_PAUSE:
            self.worked()
        self._failures += 1
        doubled = 0.0 if self._failures == 1 else SHORTEST_PAUSE * 2 ** min(self._failures - 2, 10)
        return min(doubled, LONGEST_PAUSE) * random.uniform(0.8, 1.2)

    def _locked_by(self, error: Exception) -> str | None:
        if not isinstance(error, psycopg.errors.QueryCanceled):
            return None
        tables = [self.names.jobs, self.names.claims, self.names.workers]
        with contextlib.suppress(psycopg.Error):
            rows = self.connection.execute(LOCKED_BY, (tables,)).fetchall()
            return ", ".join(f"{pid} ({name}, {'?' if age is None else age} s)" for pid, name, age in rows) or None
        return None

    def is_open(self) -> bool:
        """From another thread: whether there is a connection, as far as is known."""
        return self.lives > 0 and not self.connection.closed

    def hang_up_if_silent(self) -> bool:
        """From another thread: has the server not answered for too long? Then it is not waited for any more."""
        return self.lives > 0 and self.connection.hang_up_if_silent()

    def unregister(self) -> None:
        """Take this worker's row away, at an orderly end."""
        wake.unregister(self.connection, self.names, self.claims.owner)

    def close(self) -> None:
        """End this life and its locks; harmless when there was none."""
        if self.lives:
            self.connection.close()
