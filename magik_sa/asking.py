"""Questions that an operator asks of a database that may be in trouble: bounded in time, and without any effect.

What cannot be answered (no time left, no privilege, a table that is not there) is unknown, and says why.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import DBAPIError

from . import grants
from .errors import BootError
from .failure import first_line, sqlstate
from .home import located, prefix
from .installed import installed_version
from .settings import schema

LONGEST: Final = 2.0  # seconds for one question
PATIENCE: Final = 0.5  # seconds of them for a lock: a question that has to wait longer is answered by who holds it

# For one transaction, so that it works behind any pooler. A seq scan of the job table reads every dead row; the plans
# that are wanted here follow an index, as a worker's do, also while nobody has analysed the table.
SETTINGS: Final = """
SELECT set_config('statement_timeout', :longest, true), set_config('lock_timeout', :patience, true),
       set_config('transaction_read_only', 'on', true), set_config('row_security', 'off', true),
       set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_sort', 'off', true)"""

TIMED_OUT: Final = "57014"
LOCKED: Final = "55P03"
UNGRANTED: Final = "42501"
# and a table or a column that is missing; an unlogged table on a standby
UNKNOWN: Final = (TIMED_OUT, LOCKED, UNGRANTED, "42P01", "42703", "0A000")


class Unanswered(Exception):
    """A question has no answer; the text says why."""


class Asking:
    """One connection, and the time that all questions on it may take together.

    `oid` is the job table's, which salts the keys of all locks. Raises `BootError` where there are no tables.
    """

    def __init__(self, connection: Connection, seconds: float = LONGEST) -> None:
        self._connection, self._end = connection, time.monotonic() + seconds
        self.oid = self._find()

    def ask(self, statement: str, **values: Any) -> Sequence[Row[Any]]:
        """The rows of one statement, in which ``{schema}`` stands before each table. Raises `Unanswered`."""
        left = min(LONGEST, self._end - time.monotonic())
        if left <= 0:
            raise Unanswered("the questions before it took all the time")
        try:
            with self._within(left):
                return self._connection.execute(text(located(statement)), values).all()
        except DBAPIError as error:
            raise self._ungranted(error, statement) or _unanswered(error, left) from error

    @contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        with self._connection.begin():
            self._connection.execute(text(SETTINGS), {"longest": _ms(seconds), "patience": _ms(PATIENCE)})
            yield

    def _ungranted(self, error: DBAPIError, statement: str) -> Unanswered | None:
        """What this role has to be granted for that statement, where it is that."""
        if sqlstate(error) != UNGRANTED:
            return None
        with suppress(DBAPIError), self._within(LONGEST):
            lacks = grants.lacking(self._connection, grants.LOOKING)
            if mends := [lack.sql for lack in lacks if f"{{schema}}{lack.table}" in statement]:
                return Unanswered(f"{first_line(error)} (MAGIK_GRANT_MISSING: {'; '.join(mends)})")
        return None

    def one(self, statement: str, **values: Any) -> Row[Any]:
        """The only row of a statement that always has one."""
        (row,) = self.ask(statement, **values)
        return row

    def version(self) -> int:
        """The version of the tables. Raises `Unanswered`."""
        return int(self.one("SELECT version FROM {schema}magik_schema").version)

    def _find(self) -> int:
        try:
            oid = self.one("SELECT to_regclass(:place || 'magik_jobs')::oid::bigint AS oid", place=prefix()).oid
        except Unanswered as error:
            raise self._hidden() or BootError(
                "MAGIK_TABLES_UNREADABLE", f"{_place()}: {error}.", field="schema"
            ) from error
        if oid is None:
            raise self._hidden() or self._missing()
        return int(oid)

    def _hidden(self) -> BootError | None:
        """Where the schema is one that this role may not use."""
        with suppress(DBAPIError), self._within(LONGEST):
            lacks = grants.lacking(self._connection, grants.LOOKING)
            if lacks and not lacks[0].table:
                error = grants.refused(lacks)
                return BootError(
                    "MAGIK_TABLES_UNREADABLE", f"{_place()}: {error.what}", remedy=error.remedy, field="schema"
                )
        return None

    def _missing(self) -> BootError:
        with self._connection.begin():
            version = installed_version(self._connection)
        if version:
            return BootError("MAGIK_SCHEMA_INCOMPLETE", "The tables are not whole; missing: table magik_jobs.")
        database = self._connection.engine.url.database
        return BootError("MAGIK_SCHEMA_MISSING", f"No tables of magik_sa in {_place()} of the database {database}.")


def _place() -> str:
    return f"schema {schema()}" if schema() else "the search_path"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000 + 1:.0f}ms"


def _unanswered(error: DBAPIError, seconds: float) -> Exception:
    """Why there is no answer; or that there is no connection; or what is nobody's fault but ours."""
    if error.connection_invalidated:
        return BootError("MAGIK_DATABASE_UNREACHABLE", f"The connection was lost: {first_line(error)}.")
    if (state := sqlstate(error)) not in UNKNOWN:
        return error
    if state == LOCKED:
        return Unanswered(f"another session held a lock on a table for longer than {PATIENCE} s")
    return Unanswered(f"no answer within {seconds:.1f} s" if state == TIMED_OUT else first_line(error))
