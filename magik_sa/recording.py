"""How a run ended, or that it was interrupted, written into its row in a short transaction of our own."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, func, select, update
from sqlalchemy.exc import DBAPIError

from .duration import text
from .errors import JobTimeout, RunError
from .failure import cut, describe, kind, plain, sqlstate
from .job import Job
from .job_session import Run
from .version import raised

JOBS: Final = Job.__table__
STILL: Final = select(JOBS.c.id)
AT_ONCE: Final = {"40001", "40P01"}  # serialization failure, deadlock: nobody's fault, tried again without a pause

NEXT_VERSION: Final = raised(JOBS.c.version)
MOMENT: Final = func.statement_timestamp()  # now() is the beginning of what may be a long transaction

MOST_ERRORS = 2**31 - 1  # that the column can hold: a row by hand may say so, and its outcome is written all the same
LONGEST_PLAIN = 24_000  # bytes of an error's text where characters beyond ASCII have to be spelt out
LONGEST_TELLING = timedelta(seconds=3)  # that an error's own text may take to make
TRIES_OF_OURS = 5  # of our own short transactions, against the same two


def record(run: Run, values: dict[str, Any]) -> bool:
    """Write to the job's row; False where the row is no longer this run's.

    It is tried again where the server broke it off. Whatever else goes wrong may be due to what the job has left set on
    the connection, or to a character that the database's encoding lacks: so the last try does without both.
    """
    for _ in range(TRIES_OF_OURS - 1):
        try:
            return _write(run, values)
        except DBAPIError as error:
            if not (error.connection_invalidated or sqlstate(error) in AT_ONCE):
                break
        except UnicodeEncodeError:
            break
    run.renew()
    return _write(run, {**values, "last_error": plain(values["last_error"])})


def _write(run: Run, values: dict[str, Any]) -> bool:
    mine = (JOBS.c.id == run.claimed.id, JOBS.c.version == run.fence.committed, JOBS.c.finished_at.is_(None))
    statement = update(JOBS).where(*mine).values(version=NEXT_VERSION)
    run.connection = run.take()
    told = {"last_error": writable(values["last_error"], run.connection)}
    with run.begin(run.connection):
        written = run.connection.execute(statement.values(**values | told)).rowcount == 1
        if not written:
            expect_changed(run.connection, *mine)
    if written:
        run.fence.moved()
    return written


def expect_changed(connection: Connection, *mine: ColumnElement[bool], **values: object) -> None:
    """Nobody has changed a row that stands there as it was: to run it again at once would go on for ever.

    Raises `RunError` ``MAGIK_ROW_KEPT`` then.
    """
    if connection.execute(STILL.where(*mine), values).first() is not None:
        raise kept()


def kept() -> RunError:
    """The row stands there as it was, though it was told to go, or to say how its run ended."""
    return RunError("MAGIK_ROW_KEPT", "The server did not write to the job's row, and did not say why.")


def failed(run: Run, error: BaseException) -> dict[str, Any]:
    """What the row says of a try that failed."""
    one_more = func.least(JOBS.c.error_count, MOST_ERRORS - 1) + 1
    return {"error_count": one_more, "last_error": text_of(run, error), "failed_at": MOMENT}


def text_of(run: Run, error: BaseException) -> str:
    """The error's text. A __str__ is the application's code, and may hang like any other."""
    try:
        return run.limits.within(LONGEST_TELLING, partial(describe, error))
    except JobTimeout:
        return f"{kind(error)}: <its text took longer than {text(LONGEST_TELLING)} to make>"


def writable(told: str, connection: Connection) -> str:
    """An error's text as this connection, which may be the application's, can send it and its server can hold it."""
    info: Any = getattr(connection.connection.dbapi_connection, "info", None)
    if info is None:  # asyncpg, in the test kit: always UTF8, and a server that is not says so
        return told
    asked = info.parameter_status
    return told if asked("client_encoding") == asked("server_encoding") == "UTF8" else cut(plain(told), LONGEST_PLAIN)
