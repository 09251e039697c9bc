"""The connection of one command: the same URL as the worker's, and its faults in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from .. import server
from ..database import unreached
from ..errors import BootError
from ..settings import read
from ..url import conninfo, parse


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
        yield connection
