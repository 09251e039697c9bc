"""How the locking connection reads rows of jobs: whatever stands in one, the others of its batch come through.

SQL can write what Python cannot hold: a time before the year 1 (``run_at = '-infinity'``, to be the first), a number of
5,000 digits. The error of one such row would be the whole batch's, at every claim again.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.types.json import set_json_loads

from .unreadable import EARLIEST, LATEST, loaded


class Words(Loader):
    """Text of a server that does not know its encoding (SQL_ASCII): it may be anything."""

    def load(self, data: Buffer) -> str:
        return bytes(data).decode("utf-8", "replace")


class Moment(Loader):
    """A time, as near to it as a `datetime` can come."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        exact = psycopg.adapters.get_loader(oid, Format.TEXT)
        assert exact is not None
        self._exact = exact(oid, context)

    def load(self, data: Buffer) -> datetime:
        try:
            moment: datetime = self._exact.load(data)
        except psycopg.DataError:
            early = bytes(data).startswith(b"-") or bytes(data).endswith(b"BC")
            return EARLIEST if early else LATEST
        return moment


_EXACT: Final = psycopg.adapters.get_loader(psycopg.adapters.types["timestamptz"].oid, Format.TEXT)


def read_near(cursor: psycopg.Cursor[Any]) -> None:
    """The statement holds its times within what a `datetime` can be (`NEAREST`): the driver reads them, at a third of
    the time that a `Moment` takes.
    """
    assert _EXACT is not None
    cursor.adapters.register_loader("timestamptz", _EXACT)


def read_any(connection: psycopg.Connection[Any]) -> None:
    """From here on no value of a row makes reading it fail."""
    connection.adapters.register_loader("timestamptz", Moment)
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        connection.adapters.register_loader("text", Words)
    set_json_loads(loaded, connection)
