"""One transaction in which a command changes something: done or refused, with the server's refusals in our words."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from ..errors import BootError
from ..failure import first_line, sqlstate
from ..harmless import harmless
from ..locked import tables_locked
from .connect import connected
from .output import Answer

BOUND: Final = "SELECT set_config('lock_timeout', '5s', true), set_config('statement_timeout', '10s', true)"
WAITED: Final = ("55P03", "57014")
UNGRANTED: Final = "42501"
READ_ONLY: Final = "25006"
ABSENT: Final = "MAGIK_SCHEMA_MISSING"
UNKEPT: Final = "; who resumed it is not kept"
BY: Final = click.option("--by", help="who wants it so: may be said, and is not kept")
MISSING: Final = ("42P01", "42703", "3F000")  # a table, a column, a schema


def changed(
    database_url: str | None,
    kind: str,
    name: str,
    act: Callable[[Connection], bool],
    said: tuple[str, str],
    **data: object,
) -> Answer:
    """Do this to the schedule or the queue of that name; `said` where there was something to do, and where not."""
    with changing(database_url, f"{kind}s") as connection:
        done = act(connection)
    text = f"The {kind} {harmless(name)} {said[0] if done else said[1]}."
    return Answer(text, {kind: name, **data, "changed": done})


@contextmanager
def changing(database_url: str | None, command: str) -> Iterator[Connection]:
    """A connection of `command`'s own in a transaction that is committed at the end. Waits 5 s at most for a lock.

    Raises `BootError` for whatever the server refuses.
    """
    with connected(database_url, command) as connection:
        try:
            with connection.begin():
                connection.execute(text(BOUND))
                yield connection
        except DBAPIError as error:
            raise _coded(connection, error) from error


def _coded(connection: Connection, error: DBAPIError) -> BootError | DBAPIError:
    said, state = f"{first_line(error)}.", sqlstate(error)
    if error.connection_invalidated:
        return BootError("MAGIK_DATABASE_UNREACHABLE", f"The connection was lost: {said}")
    if state in WAITED:
        with connection.begin():
            return tables_locked(connection)
    codes = {UNGRANTED: "MAGIK_GRANT_MISSING", READ_ONLY: "MAGIK_SERVER_READ_ONLY", **dict.fromkeys(MISSING, ABSENT)}
    return BootError(codes[state], said) if state in codes else error


def somebody() -> str:
    """Who gives the command, as far as the machine knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        return "magik"
