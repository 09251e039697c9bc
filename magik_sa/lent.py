"""The one Connection of a thread, which it lends to each job in turn: the next gets it as the first did."""

from __future__ import annotations

import logging
from typing import Any, Final

from sqlalchemy import Connection, Engine

from .failure import headline
from .logs import say
from .readable import readable

# What of a driver's connection outlasts a transaction: psycopg's words and psycopg2's. Asking them costs no round trip.
LASTING: Final = ("autocommit", "isolation_level", "read_only", "readonly", "deferrable")


class Lent:
    """`take` it each time anew, outside of a transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection = engine.connect()
        self._options = self._connection.get_execution_options()
        self._lasting = _lasting(self._connection)

    def take(self) -> Connection:
        """The Connection; another one where a job has closed it, or left its isolation level or another option set."""
        if not self._connection.closed and self._connection.get_execution_options() != self._options:
            self.close()
        if self._connection.closed:
            self._connection = self._engine.connect()
        if not self._connection.invalidated and self._is_changed():
            self._connection.invalidate()
        return self._connection

    def renew(self) -> None:
        """Connect anew when it is next used."""
        if not self._connection.closed:
            self._connection.invalidate()

    def is_dead(self) -> bool:
        """Whether the server went away while the Connection was idle; it is not looked at once it is given up.

        An idle connection has nothing to read; a lost one has the server's last word, or its end. Looking costs no
        round trip, and saves the next job from failing for what happened before it. (What has gone silent shows
        nothing: when the locking connection was lost, all of them are made anew.)
        """
        if self._connection.closed or self._connection.invalidated:
            return False
        driver = _driver(self._connection)
        return driver is None or bool(driver.closed or readable([driver], 0))

    def close(self) -> None:
        """Give it back to its pool, which resets what SQLAlchemy has set there; away with one that cannot be."""
        try:
            self._connection.close()
        except Exception as error:
            say(logging.WARNING, "connection_not_closed", error=headline(error))
            self._connection.invalidate()
            self._connection.close()

    def _is_changed(self) -> bool:
        driver = _driver(self._connection)
        return driver is None or bool(driver.closed or _lasting(self._connection) != self._lasting)


def _driver(connection: Connection) -> Any:
    return connection.connection.dbapi_connection


def _lasting(connection: Connection) -> list[Any]:
    return [getattr(_driver(connection), name, None) for name in LASTING]
