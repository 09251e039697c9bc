"""Maintenance: what `--maintenance` asks for, done by one worker at a time, in a thread and a session of its own.

Not in the scheduler's: a VACUUM of minutes would hold up every tick. Not in a job's: it is outside of transactions. The
session is a direct one, as that of the locks. It holds a lock while it is at it, so that nobody else is, and is free
again the moment this process dies. When a duty is due is said by a row beside the schedules, by the database's clock.
The row moves on when the duty is done: what a dying worker leaves undone is still due, and another takes it.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, NullPool, Row, create_engine, text

from .. import server
from ..duration import text as spelt
from ..failure import first_line
from ..forked import keep_from_children
from ..home import located, prefix
from ..job_session import read_committed
from ..logs import say
from ..names import MAINTENANCE
from ..rows import read_any
from ..statement import hang_up
from .duties import Duty, Refused

LONGEST_SLEEP: Final = 5.0  # seconds between two looks
SILENT_AFTER: Final = 45.0  # seconds without an answer; statements with a limit end after 30
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before it connects again
LEAVE: Final = 0.3  # seconds that the thread may take to end, and as many again once its connection is cut

# idle_session_timeout: were this process gone silent, the lock would be free after it.
SETTINGS: Final = {
    **server.BOTH,
    "statement_timeout": "30s",
    "lock_timeout": "2s",
    "idle_session_timeout": "60s",
    "idle_in_transaction_session_timeout": "60s",
    "client_min_messages": "warning",
    "default_transaction_isolation": "read committed",
    "jit": "off",
}

# The rows of the duties are hidden from those who look for schedules of the application.
PUT: Final = """
INSERT INTO {schema}magik_job_schedules AS s (name, job_class, declaration, next_run_at)
VALUES (:name, :maintenance, CAST(:declaration AS jsonb), now())
    ON CONFLICT (name) DO UPDATE SET declaration = excluded.declaration
 WHERE s.declaration <> excluded.declaration"""
LOOK: Final = """
SELECT name, paused_at IS NOT NULL AS paused,
       CAST(extract(epoch FROM next_run_at) - extract(epoch FROM clock_timestamp()) AS float8) AS seconds
  FROM {schema}magik_job_schedules WHERE name = ANY(CAST(:names AS text[])) ORDER BY next_run_at, name"""
DONE: Final = """
UPDATE {schema}magik_job_schedules
   SET next_run_at = clock_timestamp() + make_interval(secs => :every), last_run_at = clock_timestamp()
 WHERE name = :name"""

# A pair of ints, of which the first is nobody's queue flag: those begin with the oid of the job table.
TRY: Final = "SELECT pg_try_advisory_lock(CAST(to_regclass(:place || 'magik_job_schedules') AS oid)::int, 1)"
UNLOCK: Final = "SELECT pg_advisory_unlock(CAST(to_regclass(:place || 'magik_job_schedules') AS oid)::int, 1)"


@dataclass(frozen=True)
class Upkeep:
    """What a worker was asked to look after, and how it reaches the server."""

    conninfo: str = field(repr=False)
    app_name: str
    duties: Sequence[Duty]


class Maintenance(threading.Thread):
    """The thread `magik-maintenance`. Ends when it is told to, and for nothing that a duty or the database does."""

    def __init__(self, upkeep: Upkeep) -> None:
        super().__init__(name="magik-maintenance", daemon=True)
        self._upkeep = upkeep
        self._duties = {f"{MAINTENANCE}:{duty.name}": duty for duty in upkeep.duties}
        self._end = threading.Event()
        self._told = set[str]()  # the duties of which it was said that they fail
        self._driver: Any = None
        self._duty: Duty | None = None  # what runs just now
        self._pause = FIRST_PAUSE

    def run(self) -> None:
        while not self._end.is_set():
            try:
                self._live()
            except BaseException as error:
                if self._end.is_set():
                    return
                pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE)
                say(logging.WARNING, "maintenance_interrupted", error=first_line(error), next_try_s=round(pause, 2))
                self._end.wait(pause * random.uniform(0.8, 1.2))

    def stop(self) -> None:
        """Begin nothing more, and break off what runs: it is done later, by anybody. Returns at once."""
        self._end.set()
        if self._duty is not None:
            hang_up(self._driver)

    def leave(self) -> bool:
        """After `stop`: wait for its end; whether it has ended."""
        self.join(LEAVE)
        if self.is_alive():
            hang_up(self._driver)
            self.join(LEAVE)
        return not self.is_alive()

    def hang_up_if_silent(self) -> bool:
        """Asked by the watchdog: has the server taken longer for a statement with a limit than that?"""
        driver, duty = self._driver, self._duty
        since = getattr(driver, "waiting_since", None)
        if since is None or (duty and duty.unlimited) or time.monotonic() - since < SILENT_AFTER:
            return False
        hang_up(driver)
        return True

    # ---- one life of the connection

    def _live(self) -> None:
        engine = create_engine("postgresql+psycopg://", creator=self._connect, poolclass=NullPool)
        with engine.connect() as connection:
            try:
                while not self._end.is_set():
                    self._end.wait(self._turn(connection) * random.uniform(0.8, 1.0))
                    self._pause = FIRST_PAUSE
            except BaseException:
                connection.invalidate()
                raise

    def _connect(self) -> Any:
        told = self._upkeep
        name = f"{told.app_name} maintenance"
        driver = server.LockingConnection.connect(
            told.conninfo, autocommit=True, application_name=name, prepare_threshold=None, **server.CLIENT
        )
        self._driver = driver
        keep_from_children(driver)
        driver.execute(server.settings_sql(SETTINGS).encode())
        read_any(driver)
        server.refuse_read_only(driver)
        driver.autocommit = False
        return driver

    def _write(self, connection: Connection) -> None:
        for name, duty in sorted(self._duties.items()):
            declaration = json.dumps({"every": spelt(duty.every)})
            values = {"name": name, "maintenance": MAINTENANCE, "declaration": declaration}
            with read_committed(connection):
                connection.execute(text(located(PUT)), values)

    def _turn(self, connection: Connection) -> float:
        """Do what is due, unless another worker is at it; seconds until the next look."""
        until = self._look(connection)
        if not any(seconds <= 0 for seconds in until.values()):
            return min([LONGEST_SLEEP, *until.values()])
        if not self._lock(connection, TRY):
            return LONGEST_SLEEP
        for name, seconds in self._look(connection).items():  # again: another may have done it meanwhile
            if seconds <= 0 and not self._end.is_set():
                self._do(connection, name)
        self._lock(connection, UNLOCK)
        return 0.0

    def _do(self, connection: Connection, name: str) -> None:
        """One duty. One that fails is told of once, and is due again at its next time."""
        self._duty = duty = self._duties[name]
        try:
            duty.work(connection, self._end.is_set)
            self._told.discard(name)
        except Refused as refused:
            self._tell(name, error=refused.why, needs=refused.needs)
        except Exception as error:
            if self._driver.closed:
                raise
            connection.rollback()
            self._tell(name, error=first_line(error))
        finally:
            self._duty = None
        if not self._end.is_set():
            with read_committed(connection):
                connection.execute(text(located(DONE)), {"name": name, "every": duty.every.total_seconds()})

    def _tell(self, name: str, **fields: str) -> None:
        if name not in self._told:
            say(logging.WARNING, "maintenance_failed", duty=self._duties[name].name, **fields)
        self._told.add(name)

    def _look(self, connection: Connection) -> dict[str, float]:
        """In how many seconds each is due; the one that has been due for longest comes first."""
        found = self._rows(connection)
        if len(found) < len(self._duties):  # nobody has looked before, or somebody has taken rows away
            self._write(connection)
            found = self._rows(connection)
        return {row.name: row.seconds for row in found if not row.paused}

    def _rows(self, connection: Connection) -> Sequence[Row[Any]]:
        with read_committed(connection):
            return connection.execute(text(located(LOOK)), {"names": list(self._duties)}).all()

    def _lock(self, connection: Connection, statement: str) -> bool:
        with read_committed(connection):
            return bool(connection.scalar(text(statement), {"place": prefix()}))
