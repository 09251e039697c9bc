"""The database's URL: as SQLAlchemy reads it, for threads, and as libpq reads it."""

from __future__ import annotations

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from .errors import BootError
from .failure import first_line

DRIVERS = ("psycopg", "psycopg2")  # of jobs: set up as in server.py, and looked at between two jobs
ONLY = "Jobs run on postgresql+psycopg:// or postgresql+psycopg2://."


def parse(text: str) -> URL:
    """A PostgreSQL URL for SQLAlchemy.

    Raises ``MAGIK_DATABASE_URL_INVALID``, which does not repeat the text: it may hold a password.
    """
    try:
        url = make_url(text.replace("postgres://", "postgresql://", 1))
    except (ArgumentError, ValueError) as error:
        raise BootError(
            "MAGIK_DATABASE_URL_INVALID", "The database URL cannot be read.", field="database-url"
        ) from error
    if url.get_backend_name() != "postgresql":
        raise BootError("MAGIK_DATABASE_URL_INVALID", f"{url.drivername!r} is not PostgreSQL.", field="database-url")
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def for_threads(url: URL) -> URL:
    """The URL, if its driver is there and can be used by threads."""
    try:
        dialect = url.get_dialect()
        dialect.import_dbapi()
    except (ArgumentError, ImportError) as error:
        fault = f"The driver of {url.drivername!r} cannot be used: {first_line(error)}."
        raise BootError("MAGIK_DATABASE_URL_INVALID", fault, field="database-url") from error
    if dialect.is_async:
        fault = f"The driver of {url.drivername!r} is asynchronous, and jobs run in threads."
        raise BootError("MAGIK_DATABASE_URL_INVALID", fault, field="database-url")
    if dialect.driver not in DRIVERS:
        fault = f"Jobs cannot run on the driver {dialect.driver}."
        raise BootError("MAGIK_DATABASE_URL_INVALID", fault, field="database-url", remedy=ONLY)
    return url


def conninfo(url: URL | str) -> str:
    """The same place for libpq, which does not read a URL's query as SQLAlchemy writes it."""
    place = (parse(url) if isinstance(url, str) else url).set(drivername="postgresql+psycopg")
    _, words = place.get_dialect()().create_connect_args(place)
    try:
        return make_conninfo(**words)
    except psycopg.ProgrammingError as error:
        fault = f"The database URL cannot be used: {first_line(error)}."
        raise BootError("MAGIK_DATABASE_URL_INVALID", fault, field="database-url") from error
