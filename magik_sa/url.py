"""The database's URL: as SQLAlchemy reads it, for threads, and as libpq reads it. What is secret in it is not shown."""

from __future__ import annotations

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from .errors import BootError
from .failure import first_line

DRIVERS = ("psycopg", "psycopg2")  # of jobs: set up as in server.py, and looked at between two jobs
SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")  # libpq's words
ONLY = "Jobs run on postgresql+psycopg:// or postgresql+psycopg2://."


def parse(text: str) -> URL:
    """A PostgreSQL URL for SQLAlchemy.

    Raises ``MAGIK_DATABASE_URL_INVALID``, which does not repeat the text: it may hold a password.
    """
    url = _read(text)
    if url is None or "@" in (url.host or ""):  # what follows an @ in a password reads as the host, and would be shown
        raise BootError("MAGIK_DATABASE_URL_INVALID", "The database URL cannot be read.", field="database-url")
    if url.get_backend_name() != "postgresql":
        raise BootError("MAGIK_DATABASE_URL_INVALID", f"{url.drivername!r} is not PostgreSQL.", field="database-url")
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _read(text: str) -> URL | None:
    """None where it cannot be: the error repeats the text. A password in the query is told as one, as in its place."""
    try:
        text.encode()  # what a command line had in other bytes cannot be given to libpq
        url = make_url(text.replace("postgres://", "postgresql://", 1))
    except (ArgumentError, ValueError):
        return None
    password = url.query.get("password")
    if not isinstance(password, str):
        return url
    return url.difference_update_query(["password"]).set(password=url.password or password)


def shown(url: URL) -> str:
    """The URL for people, without what is secret in it."""
    return url.update_query_dict({name: "..." for name in SECRETS if name in url.query}).render_as_string()


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
