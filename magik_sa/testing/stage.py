"""Where jobs are run in a test: one Connection, and Sessions on it.

A job commits and rolls back. On a connection of the kit's own that is what it does. In a transaction of the test's it
is done to savepoints, so that the test's own work stays what it is and its rollback takes everything back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, inspect, select
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from ..enqueue import Job
from ..job_session import for_runs, read_committed
from .target import Factory, Target, bind_of, connection_of, maker_of, refuse_autocommit, refuse_what_is_none

JOBS: Final = Job.__table__

JOINED = "create_savepoint"  # how the Sessions of jobs join a transaction of the test's

# A job may wait for a row that the test itself has locked, in this very thread: then nobody would ever go on.
BOUNDED: Final = "SET lock_timeout = '10s'"


@dataclass(frozen=True)
class Stage:
    """`enclosed`: the connection is in a transaction that somebody else will end."""

    connection: Connection
    sessions: scoped_session[Session]
    enclosed: bool

    def begin(self, connection: Connection) -> AbstractContextManager[object]:
        """A short transaction beside those of the jobs' Sessions."""
        return connection.begin_nested() if self.enclosed else read_committed(connection)


@contextmanager
def staged(where: Target) -> Iterator[Stage]:
    """Make ready to run jobs there. Raises `KitError` ``MAGIK_TEST_TARGET_INVALID`` where that cannot be."""
    refuse_what_is_none(where)
    if isinstance(where, Session):
        with _inside(where) as stage:
            yield stage
        return
    with _vacant(where) as sessions:
        bind = _bind(sessions)
        if isinstance(bind, Connection):
            yield _stage(bind, sessions)
            return
        with _own(bind) as connection:
            yield _stage(connection, sessions)


def _bind(sessions: scoped_session[Any]) -> Engine | Connection:
    with sessions.session_factory() as probe:
        return bind_of(probe)


def _stage(connection: Connection, sessions: scoped_session[Session]) -> Stage:
    refuse_autocommit(connection)
    enclosed, own = connection.in_transaction(), for_runs(sessions)
    if enclosed:
        factory: Any = own.session_factory
        factory.kw = {**factory.kw, "join_transaction_mode": JOINED}
    return Stage(connection, own, enclosed)


@contextmanager
def _own(engine: Engine) -> Iterator[Connection]:
    """A connection that goes back to no pool, and takes what was set for it with it."""
    with engine.connect() as connection:
        connection.detach()
        connection.exec_driver_sql(BOUNDED)
        connection.commit()
        yield connection


@contextmanager
def _vacant(where: Factory) -> Iterator[scoped_session[Any]]:
    """The factory with nobody's Session in its registry; the one that the test has there is put back."""
    maker = maker_of(where)
    if not isinstance(where, scoped_session):
        yield scoped_session(maker)
        return
    registry: Any = where.registry
    tests = registry() if registry.has() else None
    registry.clear()
    try:
        yield where
    finally:
        registry.clear()
        if tests is not None:
            registry.set(tests)


# ---- inside of a Session


@contextmanager
def _inside(session: Session) -> Iterator[Stage]:
    """In the transaction that the Session is in; where it is in none, on the Connection that it is bound to."""
    session.flush()
    bind, began = bind_of(session), session.in_transaction()
    connection = bind if isinstance(bind, Connection) and not began else connection_of(session)
    stage = _stage(connection, scoped_session(_alike(session)))
    try:
        yield stage
    finally:
        _look_again(session, stage)


def _alike(session: Session) -> sessionmaker[Any]:
    """Makes Sessions of the same class that write where this one does, in the transactions that it is in.

    The class's own __init__ may want what only the application has (Flask-SQLAlchemy's does): what it has left on the
    Session is taken over instead.
    """

    def init(alike: Session, **options: Any) -> None:
        Session.__init__(alike, **options)
        left = {name: value for name, value in vars(session).items() if name != "dispatch"}
        vars(alike).update({**left, **vars(alike)})

    def get_bind(_: Session, *args: Any, **kw: Any) -> Engine | Connection:
        bind = session.get_bind(*args, **kw)
        return bind if isinstance(bind, Connection) else session.connection(bind_arguments={"bind": bind})

    kind = type(type(session).__name__, (type(session),), {"__init__": init, "get_bind": get_bind})
    return sessionmaker(class_=kind, autoflush=session.autoflush, expire_on_commit=session.expire_on_commit)


def _look_again(session: Session, stage: Stage) -> None:
    """What the jobs wrote is read anew, as after a commit. Jobs whose row is gone leave the Session as they are."""
    jobs = {(inspect(job).identity or (None,))[0]: job for job in session.identity_map.values() if isinstance(job, Job)}
    with stage.begin(stage.connection):
        left = set(stage.connection.scalars(select(JOBS.c.id).where(JOBS.c.id.in_(list(jobs)))))
    for id in jobs.keys() - left:
        session.expunge(jobs[id])
    session.expire_all()
