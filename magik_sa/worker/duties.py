"""What a worker does for the tables where it was asked to: VACUUM, prune, end transactions that idle.

None of it is needed for a job to run, and each may be broken off anywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg.errors import InsufficientPrivilege, LockNotAvailable
from sqlalchemy import Connection

from ..failure import first_line
from ..home import prefix
from ..logs import say
from ..pruning import Wish, carry_out

VACUUMED: Final = ("magik_jobs", "magik_claims")
OWNER: Final = "the owner of the tables, or from PostgreSQL 17 on: GRANT MAINTAIN ON magik_jobs, magik_claims"
SIGHT: Final = "GRANT pg_read_all_stats, pg_signal_backend"

# Not waiting for a lock: who has the table cleans or changes it, or is about to. Not truncating: for a moment nobody
# could claim. No limit in time, as a table that is too large for it would never be cleaned.
VACUUM: Final = "VACUUM (SKIP_LOCKED, TRUNCATE false) {table}"

# Of this database, and no session of a worker's: by the names that all of them have. What a role may not see has no
# state. The state is looked at again where the session is ended, because it may have gone on meanwhile.
IDLE: Final = """
SELECT pid, backend_start, state_change, application_name, usename,
       extract(epoch FROM clock_timestamp() - state_change)::float8
  FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
   AND state LIKE 'idle in transaction%%' AND state_change < clock_timestamp() - %s::interval
   AND application_name !~ ' (locker|performer|maintenance)$'
 ORDER BY state_change"""
HIDDEN: Final = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND usename IS NOT NULL AND state IS NULL
   AND current_setting('track_activities')::bool AND coalesce(backend_type, 'client backend') = 'client backend'"""
END: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE pid = %s AND backend_start = %s AND state_change = %s AND state LIKE 'idle in transaction%%'"""


class Refused(Exception):
    """The role may not do it; what it `needs`."""

    def __init__(self, why: str, needs: str) -> None:
        self.why, self.needs = why, needs
        super().__init__(why)


@dataclass(frozen=True)
class Duty:
    """One of them: how often, and what. `work` is told when to stop, and says what it did."""

    name: str
    every: timedelta
    work: Callable[[Connection, Callable[[], bool]], None]
    unlimited: bool = False  # its statements may take as long as they want


def duties(keep: Mapping[str, timedelta], idle: timedelta | None) -> tuple[Duty, ...]:
    """Those of a worker whose classes keep their rows for so long; `idle` is None where nobody's session is ended."""
    wish = Wish(keep)
    found = [
        Duty("prune", timedelta(seconds=60), lambda connection, stop: _prune(connection, stop, wish)),
        Duty(
            "vacuum",
            timedelta(seconds=300),
            lambda connection, stop: _vacuum(_driver(connection), stop),
            unlimited=True,
        ),
    ]
    if idle is not None:
        found.append(
            Duty("end_idle", timedelta(seconds=30), lambda connection, _: _end_idle(_driver(connection), idle))
        )
    return tuple(found)


def _driver(connection: Connection) -> psycopg.Connection[Any]:
    driver: Any = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


def _prune(connection: Connection, stop: Callable[[], bool], wish: Wish) -> None:
    done = carry_out(connection, wish, stop=stop)
    if done.finished or done.notes:
        say(logging.INFO, "pruned", finished=sum(done.finished.values()), notes=done.notes)
    if done.failed:
        why = "; ".join(f"{part}: {why}" for part, why in done.failed.items())
        raise Refused(why, "DELETE on the table, and that nobody keeps it locked")


def _vacuum(driver: psycopg.Connection[Any], stop: Callable[[], bool]) -> None:
    """Outside of a transaction. What a role may not clean is a warning to the server, and no error."""
    told = list[tuple[str | None, str | None]]()

    def note(said: psycopg.errors.Diagnostic) -> None:
        told.append((said.sqlstate, said.message_primary))

    driver.add_notice_handler(note)
    driver.autocommit = True
    try:
        driver.execute("SET statement_timeout = 0")
        for name in VACUUMED:
            if not stop():
                driver.execute(VACUUM.format(table=f"{prefix()}{name}").encode())
    finally:
        driver.remove_notice_handler(note)
        if not driver.closed:
            driver.execute("RESET statement_timeout")
            driver.autocommit = False
    if refused := [str(said) for code, said in told if code != LockNotAvailable.sqlstate]:
        raise Refused("; ".join(refused), OWNER)
    say(logging.INFO, "vacuumed", passed_over=len(told) or None)


def _end_idle(driver: psycopg.Connection[Any], limit: timedelta) -> None:
    """End each by itself: of one that this role may not end the others learn nothing."""
    refused = ""
    found = driver.execute(IDLE, (limit,)).fetchall()
    hidden = (driver.execute(HIDDEN).fetchone() or (0,))[0]
    driver.commit()
    for pid, start, since, application, role, seconds in found:
        try:
            ended = driver.execute(END, (pid, start, since)).fetchone()
            driver.commit()
        except InsufficientPrivilege as error:
            driver.rollback()
            refused = f"process {pid} ({application or 'no name'}, role {role}): {first_line(error)}"
            continue
        if ended and ended[0]:
            told = {"server_pid": pid, "application": application, "role": role, "idle_s": round(seconds, 1)}
            say(logging.WARNING, "idle_transaction_ended", **told)
    if refused or hidden:
        raise Refused(refused or f"it does not see what {hidden} sessions of other roles do", SIGHT)
