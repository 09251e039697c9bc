"""What job bodies did, written on connections of their own, so that a rolled-back or killed job leaves its trace.

In a job::

    def perform(self, session):
        with effect(self):
            ...

and in the test ``effects.starts(job.id)``, ``effects.repeats()``, ``effects.overlaps()``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import psycopg

from .workers import dsn_of

TABLE = """
CREATE TABLE IF NOT EXISTS effects (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id uuid NOT NULL,
    class text NOT NULL,
    note text NOT NULL DEFAULT '',
    pid integer NOT NULL,
    thread text NOT NULL,
    started timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended timestamptz
)
"""
BEGIN = "INSERT INTO effects (job_id, class, note, pid, thread) VALUES (%s, %s, %s, %s, %s) RETURNING seq"
END = "UPDATE effects SET ended = clock_timestamp() WHERE seq = %s"
OVERLAPS = """
SELECT a.job_id, b.job_id FROM effects a JOIN effects b
    ON a.seq < b.seq AND a.started < coalesce(b.ended, 'infinity') AND b.started < coalesce(a.ended, 'infinity')
 WHERE a.class = b.class AND (%(cls)s::text IS NULL OR a.class = %(cls)s) AND (%(any)s OR a.job_id = b.job_id)
 ORDER BY a.seq, b.seq
"""


class Identified(Protocol):
    """What is asked of a job: its id."""

    @property
    def id(self) -> Any: ...  # a UUID, mapped or plain


@dataclass(frozen=True)
class Effect:
    """One start of one job's body; `ended` is None while it runs, and for ever if it was killed or raised."""

    seq: int
    job_id: UUID
    cls: str
    note: str
    pid: int
    thread: str
    started: datetime
    ended: datetime | None


# ---- in the job ---------------------------------------------------------------------------------------------

_mine = threading.local()


@contextmanager
def effect(job: Identified, note: str = "") -> Iterator[None]:
    """Record the start, and the end if the body returns; on this thread's own autocommit connection.

    To EFFECTS_URL if that is set, for workers whose own way to the database is cut, else to MAGIK_DATABASE_URL.
    """
    row = (job.id, type(job).__name__, note, os.getpid(), threading.current_thread().name)
    (seq,) = execute(BEGIN, row).fetchone() or (None,)
    yield
    execute(END, (seq,))


def record(job: Identified, note: str = "") -> None:
    """Record an effect that takes no time."""
    with effect(job, note):
        pass


def execute(query: str, values: tuple[object, ...]) -> psycopg.Cursor[Any]:
    """On this thread's own connection."""
    try:
        return _connection().execute(query.encode(), values)
    except psycopg.OperationalError:  # the server was restarted, or a test cut us off
        _mine.connection.close()
        return _connection().execute(query.encode(), values)


def _connection() -> psycopg.Connection[Any]:
    if getattr(_mine, "pid", None) != os.getpid():  # in a forked child: an answer to it would be taken for its parent's
        _mine.pid, _mine.connection = os.getpid(), None
    if _mine.connection is None or _mine.connection.closed:
        url = os.environ.get("EFFECTS_URL") or os.environ["MAGIK_DATABASE_URL"]
        _mine.connection = psycopg.connect(dsn_of(url), autocommit=True, application_name="effects")
    connection: psycopg.Connection[Any] = _mine.connection
    return connection


def forget() -> None:
    """Close this thread's connection, for tests that record in their own process."""
    with contextlib.suppress(AttributeError):
        _mine.connection.close()
        _mine.connection = None


# ---- in the test --------------------------------------------------------------------------------------------


class Effects:
    """The effects in one database; makes the table."""

    def __init__(self, url: str) -> None:
        self.dsn = dsn_of(url)
        self._kept: psycopg.Connection[Any] | None = None
        self._query(TABLE)

    def rows(self, cls: str | None = None) -> list[Effect]:
        """Every start in order, of one class or of all."""
        query = (
            "SELECT seq, job_id, class AS cls, note, pid, thread, started, ended FROM effects"
            " WHERE %(cls)s::text IS NULL OR class = %(cls)s ORDER BY seq"
        )
        return [Effect(*row) for row in self._query(query, {"cls": cls})]

    def starts(self, job_id: UUID) -> list[Effect]:
        """Every start of one job."""
        return [row for row in self.rows() if row.job_id == job_id]

    def count(self, cls: str | None = None) -> int:
        """How many starts there were."""
        return int(self._query("SELECT count(*) FROM effects WHERE %s::text IS NULL OR class = %s", (cls, cls))[0][0])

    def finished(self, cls: str | None = None) -> int:
        """How many bodies returned."""
        return sum(row.ended is not None for row in self.rows(cls))

    def repeats(self) -> list[tuple[UUID, int]]:
        """Jobs that were started more than once, and how often."""
        return self._query("SELECT job_id, count(*) FROM effects GROUP BY 1 HAVING count(*) > 1 ORDER BY 1")

    def overlaps(self, cls: str | None = None, *, same_job: bool = True) -> list[tuple[UUID, UUID]]:
        """Pairs of starts that were open at one moment: of the same job, or of any jobs of the same class.

        A killed body never ends here, so it overlaps whatever starts after it.
        """
        return self._query(OVERLAPS, {"cls": cls, "any": not same_job})

    def clear(self) -> None:
        """Forget all effects."""
        self._query("TRUNCATE effects")

    def _query(self, query: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[Any]:
        try:
            cursor = self._connection().execute(query.encode(), values)
        except psycopg.OperationalError:  # the server was restarted, or a test cut us off
            self._connection().close()
            cursor = self._connection().execute(query.encode(), values)
        return cursor.fetchall() if cursor.description else []

    def _connection(self) -> psycopg.Connection[Any]:
        """One for all that is asked, as tests ask again and again; closed when the record is no longer used."""
        if self._kept is None or self._kept.closed:
            self._kept = psycopg.connect(self.dsn, autocommit=True)
            weakref.finalize(self, self._kept.close)
        return self._kept
