"""The connection of one command: the same URL as the worker's, and its faults in our words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click
from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from .. import server
from ..asking import Asking
from ..errors import BootError
from ..rows import read_any
from ..settings import read
from ..unreached import unreached
from ..url import conninfo, parse

T = TypeVar("T")

URL: Final = click.option("--database-url", help="postgresql+psycopg://user@host/database [MAGIK_DATABASE_URL]")


def asked(database_url: str | None, command: str, question: Callable[[Asking], T]) -> T:
    """What is answered there; raises as `connected` and `Asking` do."""
    with connected(database_url, command) as connection:
        return question(Asking(connection))


@contextmanager
def connected(database_url: str | None, command: str) -> Iterator[Connection]:
    """A connection of `command`'s own to the database that is named here, in the environment or in pyproject.toml.

    Raises `BootError` where none is named, or none can be reached. It reads what others commit meanwhile, and may go
    through a pooler in transaction mode.
    """
    url = read({"database_url": database_url}).database_url
    if not url:
        raise BootError("MAGIK_DATABASE_URL_MISSING", "No database URL was given.", field="database-url")
    place = parse(url).set(drivername="postgresql+psycopg")
    conninfo(place)  # says what is wrong with it before anything is connected
    named = {**server.CLIENT, "application_name": f"magik_sa {command}", "prepare_threshold": None}
    engine = create_engine(place, poolclass=NullPool, connect_args=named, isolation_level="READ COMMITTED")
    try:
        connection = engine.connect()
    except DBAPIError as error:
        raise unreached(place, error) from error
    with connection:
        driver: Any = connection.connection.driver_connection
        read_any(driver)
        yield connection
