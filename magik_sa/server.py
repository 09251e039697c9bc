"""How every connection of a worker is set up, so that the death of either side is noticed within a bound.

Client and server send keepalives 5/2/3 and give unacknowledged data 10 s, so a cut network frees a worker's
locks in about 11 s (at the Linux defaults after 2 h 11 min), and the server looks each second whether the client
of a running query is still there. Session settings are made by SET after connecting, never by ``options=``,
which poolers refuse.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from .errors import BootError
from .forked import keep_from_children
from .rows import read_any
from .statement import hang_up

CONNECT_TIMEOUT = 10  # seconds, for one attempt
SILENT_AFTER = 12  # seconds without an answer on the locking connection; its statements end after 10

# libpq's side; psycopg and psycopg2 take the same words. Every text can be read, whatever
# PGCLIENTENCODING and the server's own encoding say.
CLIENT: dict[str, Any] = {
    "client_encoding": "utf8",
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "connect_timeout": CONNECT_TIMEOUT,
}

BOTH = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
    "client_connection_check_interval": "1s",
    "idle_session_timeout": "0",  # a job may compute for long before it writes, and the locks have to last
}

# The locker's own few statements always want the index: prepared while the table was empty and vacuumed they
# would keep a sequential scan when it is full. All three are needed: without jit=off PostgreSQL before 18
# compiles every statement whose plan holds a disabled node, for 60-140 ms. Times can be read in the ISO style only.
LOCKING = {
    **BOTH,
    "statement_timeout": "10s",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_sort": "off",
    "default_transaction_isolation": "read committed",
    "DateStyle": "ISO",
    "TimeZone": "UTC",
}

# A performer's connection also runs the application's SQL, so no plan is forbidden there; planning each time
# avoids the same trap (a finish by id took 22 ms at 20,000 rows).
PERFORMING = {**BOTH, "plan_cache_mode": "force_custom_plan"}


def settings_sql(settings: dict[str, str]) -> str:
    """One statement that makes all these session settings; names and values are this module's constants."""
    return "SELECT " + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())


class LockingConnection(psycopg.Connection[Any]):
    """Knows how long it has been waiting for an answer, and lets another thread end the waiting.

    A proxy can keep a dead connection's socket open and answer its keepalives for ever: then only a limit of our own
    tells that nobody is there. statement_timeout makes a living server answer long before.
    """

    waiting_since: float | None = None

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """Run one exchange with the server; psycopg calls this for every one."""
        self.waiting_since = time.monotonic()
        try:
            return super().wait(gen, *args, **options)
        finally:
            self.waiting_since = None

    def hang_up_if_silent(self) -> bool:
        """From another thread: end an exchange that has lasted too long; it fails there as a lost connection does."""
        since = self.waiting_since
        if since is None or time.monotonic() - since < SILENT_AFTER:
            return False
        hang_up(self)
        return True


def connect_locking(conninfo: str, app_name: str) -> LockingConnection:
    """The dedicated connection that holds every lock of a worker. Raises `psycopg.Error`.

    A server that cannot be written to counts as no server: `BootError` ``MAGIK_SERVER_READ_ONLY``.
    """
    connection = LockingConnection.connect(conninfo, autocommit=True, application_name=f"{app_name} locker", **CLIENT)
    try:
        connection.execute(settings_sql(LOCKING).encode())
        _take_any_bytes(connection)
        read_any(connection)
        refuse_read_only(connection)
    except BaseException:
        connection.close()
        raise
    keep_from_children(connection)
    return connection


def _take_any_bytes(connection: psycopg.Connection[Any]) -> None:
    """A server that does not know its encoding would end the session rather than send what is no UTF8."""
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        connection.execute("SET client_encoding TO 'SQL_ASCII'")


def refuse_read_only(connection: psycopg.Connection[Any]) -> None:
    """Raise `BootError` ``MAGIK_SERVER_READ_ONLY`` on a standby or a server set to read only."""
    row = connection.execute("SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool").fetchone()
    if row is None or row[0]:
        raise BootError("MAGIK_SERVER_READ_ONLY", "The server takes no writes.")
