"""The Sessions that jobs run in: the application's, or our own on an engine with one connection a thread."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool, QueuePool
from sqlalchemy.util import ThreadLocalRegistry

from . import server
from .errors import BootError, MagikError
from .failure import first_line
from .job import Job
from .settings import Settings

Sessions = sessionmaker[Session] | scoped_session[Session]


class Place(NamedTuple):
    """Where jobs run. `ours`: nobody else uses the engine, so who made it has to dispose of it."""

    engine: Engine
    sessions: scoped_session[Session]
    ours: bool

    def leave(self) -> None:
        """Close what connections of ours are open; the application's pool stays its own."""
        if self.ours:
            self.engine.dispose()


def find(settings: Settings, given: Sessions | None) -> Place:
    """The Sessions that were given or named, or our own. Raises `BootError` where there are none."""
    if given is None and settings.session:
        given = resolve(settings.session)
    if given is None:
        engine = _engine(settings)
        return Place(engine, scoped_session(sessionmaker(engine)), ours=True)
    sessions = given if isinstance(given, scoped_session) else scoped_session(given)
    engine = _bind(sessions)
    event.listen(engine, "connect", _tune)
    return Place(engine, sessions, ours=False)


def resolve(spec: str) -> Sessions:
    """``package.module:attribute`` as the sessionmaker or scoped_session it names."""
    module, _, attribute = spec.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except Exception as error:
        raise BootError(
            "MAGIK_SESSION_INVALID", f"--session {spec!r}: {first_line(error)}.", field="session"
        ) from error
    if not isinstance(value, sessionmaker | scoped_session):
        raise BootError("MAGIK_SESSION_INVALID", f"--session {spec!r} is a {type(value).__name__}.", field="session")
    return value


def _bind(factory: scoped_session[Session]) -> Engine:
    try:
        with factory.session_factory() as session:
            bind = session.get_bind(Job)
    except Exception as error:
        raise BootError(
            "MAGIK_SESSION_INVALID", f"No engine behind --session: {first_line(error)}.", field="session"
        ) from error
    if not isinstance(bind, Engine) or bind.dialect.name != "postgresql":
        raise BootError("MAGIK_SESSION_INVALID", "The Session is not bound to a PostgreSQL engine.", field="session")
    return bind


def _engine(settings: Settings) -> Engine:
    if not settings.database_url:
        raise BootError("MAGIK_DATABASE_URL_MISSING", "No database URL was given.", field="database-url")
    url = _for_threads(parse(settings.database_url))
    named = {**server.CLIENT, "application_name": f"{settings.app_name} performer"}
    engine = create_engine(url, pool_size=settings.concurrency, max_overflow=0, connect_args=named)
    event.listen(engine, "connect", _tune)
    return engine


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


def _for_threads(url: URL) -> URL:
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


def _tune(dbapi_connection: Any, _: Any) -> None:
    """Session settings of a performer's connection, each time it is made."""
    with contextlib.closing(dbapi_connection.cursor()) as cursor:
        cursor.execute(server.settings_sql(server.PERFORMING))
    dbapi_connection.commit()


def check_sessions(place: Place, concurrency: int) -> Iterator[MagikError]:
    """One Session a thread, and a connection for each."""
    if not _thread_keyed(place.sessions):
        yield BootError(
            "MAGIK_SESSION_NOT_THREAD_KEYED", "The scoped_session does not keep threads apart.", field="session"
        )
    if (room := _pool_room(place.engine)) < concurrency:
        fault = f"The engine's pool gives {room} connections for {concurrency} threads."
        yield BootError("MAGIK_POOL_SIZE_MISMATCH", fault, field="concurrency")


def _thread_keyed(factory: scoped_session[Session]) -> bool:
    """SQLAlchemy's own thread-local registry, and two threads that meet at a barrier do get two Sessions.

    The type alone could be a subclass that cheats; the probe alone passes for a scopefunc that only happens to
    tell these two threads apart.
    """
    return type(factory.registry) is ThreadLocalRegistry and _met_apart(factory)


def _met_apart(factory: Callable[[], Any]) -> bool:
    seen: list[Any] = []
    barrier = threading.Barrier(2)

    def meet() -> None:
        session = factory()
        barrier.wait(10)
        seen.append(session)
        factory.remove()  # type: ignore[attr-defined]

    threads = [threading.Thread(target=meet, name=f"magik-boot-{n}") for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(seen) == 2 and seen[0] is not seen[1]


def _pool_room(engine: Engine) -> float:
    pool = engine.pool
    if isinstance(pool, QueuePool):
        overflow: int = pool._max_overflow
        return float("inf") if overflow < 0 else pool.size() + overflow
    return float("inf") if isinstance(pool, NullPool) else 1
