"""Boot proves that a worker can do what it promises, and names everything that stands against it at once."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session, configure_mappers, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool, QueuePool
from sqlalchemy.util import ThreadLocalRegistry

from . import migrations, server
from .errors import BootError, BootRefused, MagikError
from .failure import headline
from .job import Job, declared
from .session import follow
from .settings import Settings, schema
from .verb import SYSTEM, verbs

POOLER_ROUNDS = 10

Sessions = sessionmaker[Session] | scoped_session[Session]


@dataclass(frozen=True)
class Booted:
    """What a worker runs on: proven to work together."""

    settings: Settings
    engine: Engine
    sessions: scoped_session[Session]
    locking: str  # libpq connection string, password included: never shown
    shown_url: str
    known: dict[str, type[Job]]


def boot(settings: Settings, sessions: Sessions | None = None) -> Booted:
    """Import, check, connect, check. Raises `BootRefused` with every fault that was found."""
    findings = [*import_modules(settings.modules), *check_mappers()] or [*check_jobs()]
    found: Any = None
    try:
        engine, factory = _sessions(settings, sessions)
        findings += check_sessions(engine, factory, settings.concurrency)
        locking = conninfo(settings.locking_url) if settings.locking_url else conninfo(engine.url)
        findings += check_server(locking, engine, settings)
        found = engine, factory, locking
    except MagikError as error:
        findings.append(error)
    if findings:
        raise BootRefused(findings)
    engine, factory, locking = found
    follow(factory)
    return Booted(settings, engine, factory, locking, engine.url.render_as_string(), declared())


# ---- without a database


def import_modules(modules: tuple[str, ...]) -> Iterator[MagikError]:
    """Import the application's job modules; the working folder counts, as with ``python -m``."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    for name in modules:
        try:
            importlib.import_module(name)
        except MagikError as error:
            yield error
        except BaseException as error:  # a module may raise anything, SystemExit included
            yield BootError(
                "MAGIK_MODULE_IMPORT_FAILED", f"Importing {name!r} failed: {first_line(error)}.", field="modules"
            )


def check_mappers() -> Iterator[MagikError]:
    """The application's mapped classes fit together; otherwise every job would fail at its first touch."""
    try:
        configure_mappers()
    except Exception as error:
        fault = f"The mapped classes do not fit together: {first_line(error)}."
        yield BootError("MAGIK_MODULE_IMPORT_FAILED", fault, field="modules")


def check_jobs() -> Iterator[MagikError]:
    """There are jobs, and each says under which policy it runs."""
    jobs = declared()
    if not jobs:
        yield BootError("MAGIK_NO_JOBS", "No job class was declared by the imported modules.", field="modules")
    for name, cls in jobs.items():
        verb = cls.__magik__.policy
        if verb is None:
            yield BootError("MAGIK_POLICY_UNDECLARED", f"The job {name} names no policy.", field=name)
        elif verb != SYSTEM and verb not in verbs:
            yield BootError(
                "MAGIK_POLICY_UNKNOWN", f"The job {name} names the policy {verb!r}, which nobody defines.", field=name
            )


# ---- the Sessions


def _sessions(settings: Settings, given: Sessions | None) -> tuple[Engine, scoped_session[Session]]:
    """The application's Sessions, or our own on an engine whose pool has one connection a thread."""
    if given is None and settings.session:
        given = resolve(settings.session)
    if given is None:
        engine = _engine(settings)
        return engine, scoped_session(sessionmaker(engine))
    factory = given if isinstance(given, scoped_session) else scoped_session(given)
    engine = _bind(factory)
    event.listen(engine, "connect", _tune)
    return engine, factory


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


def check_sessions(engine: Engine, factory: scoped_session[Session], concurrency: int) -> Iterator[MagikError]:
    """One Session a thread, and a connection for each."""
    if not _thread_keyed(factory):
        yield BootError(
            "MAGIK_SESSION_NOT_THREAD_KEYED", "The scoped_session does not keep threads apart.", field="session"
        )
    if (room := _pool_room(engine)) < concurrency:
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


# ---- with a database


def check_server(locking: str, engine: Engine, settings: Settings) -> Iterator[MagikError]:
    """The server can be reached, written to, holds a schema we know, keeps sessions, and has room."""
    try:
        with engine.connect() as application:
            yield from check_schema(application)
        with server.connect_locking(locking, settings.app_name) as connection:
            yield from check_budget(connection, settings.concurrency)
        yield from check_pooler(locking)
    except BootError as error:
        yield error
    except Exception as error:
        fault = f"{engine.url.render_as_string()} cannot be reached: {first_line(error)}."
        yield BootError("MAGIK_DATABASE_UNREACHABLE", fault, field="database-url")


def check_schema(connection: Connection) -> Iterator[MagikError]:
    """The tables are there, in a version that this release works with."""
    installed = migrations.installed_version(connection)
    where = f"schema {schema()}" if schema() else "the search_path"
    if installed == 0:
        yield BootError("MAGIK_SCHEMA_MISSING", f"No tables of magik_sa in {where}.")
    elif installed < migrations.HEAD:
        yield BootError(
            "MAGIK_SCHEMA_BEHIND", f"The tables are of version {installed}, this release needs {migrations.HEAD}."
        )
    elif installed > migrations.HEAD:
        yield BootError(
            "MAGIK_SCHEMA_AHEAD", f"The tables are of version {installed}, this release knows {migrations.HEAD}."
        )


def first_line(error: BaseException) -> str:
    """What an error says, or the driver's error inside it, without the hints on further lines."""
    return headline(getattr(error, "orig", None) or error).splitlines()[0].rstrip(".")


def check_budget(connection: psycopg.Connection[Any], concurrency: int) -> Iterator[MagikError]:
    """The server can hold the worker's connections at all: one a thread, and the locking connection."""
    row = connection.execute(
        "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
    ).fetchone()
    if row and row[0] < concurrency + 1:
        fault = f"The worker needs {concurrency + 1} connections, the server's max_connections leaves {row[0]}."
        yield BootError("MAGIK_CONNECTION_BUDGET", fault, field="concurrency")


def check_pooler(locking: str) -> Iterator[MagikError]:
    """A session is a session: behind a transaction pooler locks would guard nothing, and nobody would notice.

    One connection asks who serves it, before, while and after another holds a transaction open. No lock is used
    as a probe: it would stay on the pooler's connection.
    """
    fault = "Sessions do not last here: the server seems to stand behind a pooler in transaction or statement mode."
    try:
        with _plain(locking) as a, _plain(locking) as b:
            honest = all(_same_backend(a, b) for _ in range(POOLER_ROUNDS))
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        fault, honest = f"{fault} ({first_line(error)})", False
    if not honest:
        yield BootError("MAGIK_ADVISORY_LOCK_UNAVAILABLE", fault, field="locking-url")


def _plain(locking: str) -> psycopg.Connection[Any]:
    return psycopg.connect(locking, autocommit=True, prepare_threshold=None, connect_timeout=server.CONNECT_TIMEOUT)


def _same_backend(a: psycopg.Connection[Any], b: psycopg.Connection[Any]) -> bool:
    first = _pid(a)
    with b.transaction():
        other, second = _pid(b), _pid(a)
    return first == second != other


def _pid(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])
