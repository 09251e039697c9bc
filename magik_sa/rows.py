"""How the locking connection reads rows of jobs: whatever stands in one, the others of its batch come through.

SQL can write what Python cannot hold: a time before the year 1 (``run_at = '-infinity'``, to be the first), a number of
5,000 digits. The error of one such row would be the whole batch's, at every claim again.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.types.json import set_json_loads

from .columns import EARLIEST, LATEST
from .failure import headline


class Unreadable(dict[str, Any]):
    """Stands for JSON that Python cannot hold; `why` becomes the failure of the job that has it."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why


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


def read_any(connection: psycopg.Connection[Any]) -> None:
    """From here on no value of a row makes reading it fail."""
    connection.adapters.register_loader("timestamptz", Moment)
    set_json_loads(_json, connection)


def _json(data: str | bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        return Unreadable(headline(error))
