"""The one Connection of a thread, which it lends to each job in turn: the next gets it as the first did."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Engine

from .errors import BootError
from .failure import headline
from .logs import say
from .peep import Peep

# What of a driver's connection outlasts a transaction: psycopg's words and psycopg2's, and what the server reports by
# itself (search_path since PostgreSQL 18). Asking costs no round trip.
LASTING: Final = ("autocommit", "isolation_level", "read_only", "readonly", "deferrable")
REPORTED: Final = (
    b"search_path",
    b"session_authorization",
    b"is_superuser",  # SET ROLE may change it
    b"default_transaction_read_only",
    b"client_encoding",
    b"TimeZone",
    b"DateStyle",
    b"IntervalStyle",
    b"standard_conforming_strings",
)
READ_ONLY: Final = (b"default_transaction_read_only", b"in_hot_standby")


class Lent:
    """`take` it each time anew, outside of a transaction. Nothing is connected before the first time.

    `told`: `lend` is called when a job first uses what was taken, and until then it is as it was. Without, any job may.
    """

    def __init__(self, engine: Engine, *, told: bool = False) -> None:
        self._told = told
        self._engine, self._options = engine, engine.get_execution_options()
        self._now: Connection | None = None
        self._lasting: list[Any] = []
        self._watched, self._peep = None, Peep(-1)  # a driver's connection, and what tells of its socket
        self._lent = False  # to a job, which may have set something there, or keep it and do so yet

    def take(self) -> Connection:
        """The Connection; another one where a job has closed it, or left something set there for whoever comes next.

        It is connected. Raises what the driver raises where it cannot be, and ``MAGIK_SERVER_READ_ONLY`` where nothing
        could be written: a session keeps what it was told when it began, so the next `take` begins another.
        """
        if self.is_open() and self._is_dead():
            self.renew()
        if self._now is not None and self.is_open() and not self._lent:
            return self._now
        if self._now is not None and not self._now.closed and self._now.get_execution_options() != self._options:
            self.close()
        if self._now is None or self._now.closed:
            self._now, self._lent = self._engine.connect(), not self._told
            self._lasting = _lasting(self._now)
        if not self._now.invalidated and self._is_changed(self._now):
            self._now.invalidate()
        if self._now.invalidated:
            self._lasting = _lasting(self._now)
        if _is_read_only(self._now):
            self._now.invalidate()
            raise BootError("MAGIK_SERVER_READ_ONLY", "The server takes no writes.")
        return self._now

    def lend(self) -> None:
        """A job uses it, and may keep it: it has to be looked at each time from now on."""
        self._lent = True

    def renew(self) -> None:
        """Connect anew when it is next used."""
        if self._now is not None and not self._now.closed:
            self._now.invalidate()

    def is_open(self) -> bool:
        """Whether there was a connection when it was last looked at."""
        return self._now is not None and not (self._now.closed or self._now.invalidated)

    def _is_dead(self) -> bool:
        """Whether the server went away while the Connection was idle.

        An idle connection has nothing to read; a lost one has the server's last word, or its end. Looking costs no
        round trip, and saves the next job from failing for what happened before it. (What has gone silent shows
        nothing: when the locking connection was lost, all of them are made anew.)
        """
        assert self._now is not None
        driver = _driver(self._now)
        return driver is None or bool(driver.closed or self._watch(driver).sees())

    def _watch(self, driver: Any) -> Peep:
        if self._watched is not driver:
            self._watched, self._peep = driver, Peep(driver.fileno())
        return self._peep

    def close(self) -> None:
        """Give it back to its pool, which resets what SQLAlchemy has set there; away with one that cannot be."""
        if self._now is None:
            return
        try:
            self._now.close()
        except Exception as error:
            say(logging.WARNING, "connection_not_closed", error=headline(error))
            self._now.invalidate()
            self._now.close()

    def _is_changed(self, connection: Connection) -> bool:
        driver = _driver(connection)
        return driver is None or bool(driver.closed or _lasting(connection) != self._lasting)


def _driver(connection: Connection) -> Any:
    return connection.connection.dbapi_connection


def _is_read_only(connection: Connection) -> bool:
    """By what the server has reported; it reports a change."""
    return not {b"on", "on"}.isdisjoint(_reported(_driver(connection), READ_ONLY))


def _lasting(connection: Connection) -> list[Any]:
    driver = _driver(connection)
    words = [getattr(driver, name, None) for name in LASTING]
    return words if driver.closed else [*words, *_reported(driver, REPORTED)]


def _reported(driver: Any, names: Sequence[bytes]) -> list[Any]:
    """As libpq has it: psycopg's `info` takes its time over each, psycopg2's does not."""
    libpq = getattr(driver, "pgconn", None)
    if libpq is not None:
        return [libpq.parameter_status(name) for name in names]
    return [driver.info.parameter_status(name.decode()) for name in names]
