"""What an operator's statements are bound to, within a transaction that may be somebody else's: time, and plans that
read no rows but those asked for. All of it is put back at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, text
from sqlalchemy.orm import Session, scoped_session

from ..errors import BootError
from ..home import located, prefix
from ..writing import connection_of, session_of

Where = Connection | Session | scoped_session[Session]

LONGEST: Final = "10s"  # for one statement
PATIENCE: Final = "250ms"  # for a lock; who does not get it leaves that job out

# A seq scan of the job table reads every dead row, and a sort all that could be sorted instead of as many as are shown.
BOUND: Final[Mapping[str, str]] = {
    "statement_timeout": LONGEST,
    "lock_timeout": PATIENCE,
    "jit": "off",
    "enable_seqscan": "off",
    "enable_sort": "off",
    "max_parallel_workers_per_gather": "0",
}
CURRENT: Final = "SELECT " + ", ".join(f"current_setting('{name}') AS {name}" for name in BOUND)
SET: Final = "SELECT " + ", ".join(f"set_config('{name}', :{name}, true)" for name in BOUND)
OID: Final = "SELECT to_regclass(:place || 'magik_jobs')::oid::bigint"


@dataclass(frozen=True)
class Bound:
    """A connection on which all statements are bound. `oid` is the job table's, which salts the keys of all locks."""

    connection: Connection
    oid: int

    def ask(self, statement: str, values: Mapping[str, Any]) -> Sequence[Row[Any]]:
        """The rows of one statement, in which ``{schema}`` stands before each table."""
        return self.connection.execute(text(located(statement)), {"oid": self.oid, **values}).all()


@contextmanager
def bounded(where: Where) -> Iterator[Bound]:
    """A savepoint of `where`: what fails in it takes back nothing but what it has done.

    Begins a transaction where there is none, and leaves it to the caller to commit. Raises `BootError`
    ``MAGIK_SCHEMA_MISSING`` where there is no job table.
    """
    connection = where if isinstance(where, Connection) else connection_of(session_of(where))
    with connection.begin_nested():
        before = connection.execute(text(CURRENT)).one()._mapping
        connection.execute(text(SET), dict(BOUND))
        oid = connection.scalar(text(OID), {"place": prefix()})
        if oid is None:
            raise BootError("MAGIK_SCHEMA_MISSING", f"There is no table {prefix()}magik_jobs in this database.")
        yield Bound(connection, int(oid))
        connection.execute(text(SET), dict(before))
