"""The Sessions that jobs run in: the application's, or our own on an engine with one connection a thread."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool, QueuePool
from sqlalchemy.util import ThreadLocalRegistry

from . import server
from .errors import BootError, MagikError
from .failure import first_line
from .forked import keep_from_children, renew_in_children
from .routing import Registry, engine_of
from .settings import Settings
from .url import DRIVERS, ONLY, for_threads, parse

Sessions = sessionmaker[Session] | scoped_session[Session]

# Whoever looks at the sessions knows a worker's by its name, also those of an engine of the application's own.
NAMED = """
SELECT set_config('application_name', coalesce(nullif(left(name, 53), ''), 'magik_sa') || ' performer', false)
  FROM current_setting('application_name') name WHERE name NOT LIKE '% performer'"""

UNLIMITED: Final = sys.maxsize  # what the room of such a pool counts as

ASYNCHRONOUS = "Jobs run in threads: leave --session out and give --database-url with postgresql+psycopg://…"


class Place(NamedTuple):
    """Where jobs run. `ours`: nobody else uses the engine, so who made it has to dispose of it."""

    engine: Engine
    sessions: scoped_session[Session]
    ours: bool

    def leave(self) -> None:
        """Close what connections of ours are open; the application's pool stays its own."""
        if self.ours:
            self.engine.dispose()


def find(settings: Settings, given: Sessions | None, threads: int) -> Place:
    """The Sessions that were given or named, or our own. Raises `BootError` where there are none."""
    named = resolve(settings.session) if given is None and settings.session else given
    if named is None:
        engine = _engine(settings, threads)
        place = Place(engine, Registry(sessionmaker(engine)), ours=True)
    else:
        sessions = _scoped(named, settings.session or "session")
        place = Place(_bind(sessions), sessions, ours=False)
    event.listen(place.engine, "connect", _tune)
    renew_in_children(place.engine)
    return place


def resolve(spec: str) -> Any:
    """What ``package.module:attribute`` names."""
    module, _, attribute = spec.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except Exception as error:
        raise _invalid(f"--session {spec!r}: {first_line(error)}.") from error
    return value


def _scoped(value: Any, spec: str) -> scoped_session[Session]:
    """A scoped_session of Sessions that threads can use."""
    kind = type(value)
    if kind.__module__.startswith("sqlalchemy.ext.asyncio"):
        raise _invalid(f"--session {spec!r} is an {kind.__name__}.", ASYNCHRONOUS)
    if not isinstance(value, sessionmaker | scoped_session):
        raise _invalid(f"--session {spec!r} is a {kind.__name__}.")
    if isinstance(value, sessionmaker):
        return Registry(value)
    if not isinstance(value.session_factory, sessionmaker):
        raise _invalid(f"--session {spec!r} makes its Sessions by something other than a sessionmaker.")
    return value


def _bind(sessions: scoped_session[Session]) -> Engine:
    """The engine that jobs are written to. That a registry is not a thread's is the likelier fault, and told first."""
    try:
        with sessions.session_factory() as session:
            bind, fault = engine_of(session), _unfit(session)
    except Exception as error:
        if not _thread_local(sessions):
            raise _not_thread_keyed() from error
        raise _invalid(f"No engine behind --session: {first_line(error)}.") from error
    if not isinstance(bind, Engine) or bind.dialect.name != "postgresql":
        raise _invalid("The Session is not bound to a PostgreSQL engine.")
    if bind.dialect.is_async:
        raise _invalid(f"The Session is bound to an asynchronous engine ({bind.url.drivername}).", ASYNCHRONOUS)
    if bind.dialect.driver not in DRIVERS:
        raise _invalid(f"The Session is bound to an engine on {bind.dialect.driver}.", ONLY)
    if fault is not None:
        raise _invalid(fault, "Give the worker a sessionmaker without that option.")
    return bind


def _unfit(session: Session) -> str | None:
    """Why no job could end in such a Session: it would run again and again."""
    if session.twophase:
        return "The Session has twophase=True, and what is prepared can notify nobody."
    return None if session.autobegin else "The Session has autobegin=False: it could not even read its job."


def _invalid(fault: str, remedy: str | None = None) -> BootError:
    return BootError("MAGIK_SESSION_INVALID", fault, field="session", remedy=remedy)


def _not_thread_keyed() -> BootError:
    fault = "The scoped_session does not keep threads apart."
    return BootError("MAGIK_SESSION_NOT_THREAD_KEYED", fault, field="session")


def _engine(settings: Settings, threads: int) -> Engine:
    if not settings.database_url:
        raise BootError("MAGIK_DATABASE_URL_MISSING", "No database URL was given.", field="database-url")
    url = for_threads(parse(settings.database_url))
    named = {**server.CLIENT, "application_name": f"{settings.app_name} performer"}
    if settings.locking_url and url.get_dialect().driver == "psycopg":
        named["prepare_threshold"] = None  # through a pooler, what was prepared on one session is missing on the next
    return create_engine(url, pool_size=threads, max_overflow=0, connect_args=named, hide_parameters=True)


def _tune(dbapi_connection: Any, _: Any) -> None:
    """Session settings of a performer's connection, each time it is made."""
    with contextlib.closing(dbapi_connection.cursor()) as cursor:
        cursor.execute(server.settings_sql(server.PERFORMING))
        cursor.execute(NAMED)
    dbapi_connection.commit()
    keep_from_children(dbapi_connection)


def check_sessions(place: Place, threads: int) -> Iterator[MagikError]:
    """One Session a thread, and a connection for each: the jobs' threads, and the scheduler's where there is one."""
    if not _thread_keyed(place.sessions):
        yield _not_thread_keyed()
    if (given := room(place.engine)) < threads:
        fault = f"The engine's pool gives {given} connections for {threads} threads."
        yield BootError("MAGIK_POOL_SIZE_MISMATCH", fault, field="concurrency")


def _thread_keyed(factory: scoped_session[Session]) -> bool:
    """SQLAlchemy's own thread-local registry, and two threads that meet at a barrier do get two Sessions.

    The type alone could be a subclass that cheats; the probe alone passes for a scopefunc that only happens to
    tell these two threads apart.
    """
    return _thread_local(factory) and _met_apart(factory)


def _thread_local(factory: scoped_session[Session]) -> bool:
    return type(factory.registry) is ThreadLocalRegistry


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


def room(engine: Engine) -> int:
    """How many connections the engine's pool gives at once."""
    pool = engine.pool
    if isinstance(pool, QueuePool):
        overflow: int = pool._max_overflow
        return UNLIMITED if overflow < 0 else pool.size() + overflow
    return UNLIMITED if isinstance(pool, NullPool) else 1
