"""Where the Session of a job sends its statements: where the application's would, jobs on the thread's Connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Delete, Engine, Update, create_engine, delete, event, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from magik_sa import BootRefused, Job, Worker, arg, bulk_enqueue, once
from magik_sa.job_session import for_runs
from magik_sa.routing import engine_of, opened
from magik_sa.sessions import find
from magik_sa.settings import Settings
from tests.tools.server import Server

Sessions = sessionmaker[Session]


class Base(DeclarativeBase):
    """Tables of an application."""


class Elsewhere(DeclarativeBase):
    """Tables in another database."""


class Note(Base):
    __tablename__ = "notes"
    number: Mapped[int] = mapped_column(primary_key=True)


class Copy(Elsewhere):
    __tablename__ = "copies"
    number: Mapped[int] = mapped_column(primary_key=True)


class Routed(Job, policy="system", queue="routed"):
    """A job with a key: its flush asks for repeats."""

    idempotent_by = "number"
    number: Mapped[int] = arg()

    def perform(self, session: Session) -> None: ...


class Leading(Session):
    """As the documentation of SQLAlchemy has it: writes go to the leader, reads to a follower."""

    leader: Engine
    follower: Engine

    def get_bind(self, mapper: Any = None, clause: Any = None, **kw: Any) -> Any:
        if mapper is not None and issubclass(mapper.class_, Elsewhere):
            return self.follower
        if self._flushing or isinstance(clause, Update | Delete):
            return self.leader
        return self.follower


@pytest.fixture
def other(server: Server, template: str) -> Iterator[Engine]:
    """Another database, with the queue's tables and none of the jobs."""
    with server.created(template) as name:
        engine = create_engine(server.url(name))
        Elsewhere.metadata.create_all(engine)
        yield engine
        engine.dispose()


@pytest.fixture(autouse=True)
def tables(engine: Engine) -> None:
    Base.metadata.create_all(engine)


def bound(engine: Engine, other: Engine) -> Sessions:
    return sessionmaker(engine)


def by_class(engine: Engine, other: Engine) -> Sessions:
    return sessionmaker(binds={Base: engine, Job: engine, Elsewhere: other})


def mixed(engine: Engine, other: Engine) -> Sessions:
    return sessionmaker(other, binds={Base: engine, Job: engine})


def by_function(engine: Engine, other: Engine) -> Sessions:
    return sessionmaker(class_=type("Own", (Leading,), {"leader": engine, "follower": other}))


KINDS: list[Callable[[Engine, Engine], Sessions]] = [bound, by_class, mixed, by_function]


@pytest.mark.parametrize("kind", KINDS)
def test_jobs_are_enqueued_where_the_application_writes_them(kind: Any, engine: Engine, other: Engine) -> None:
    sessions = kind(engine, other)
    jobs = [Routed(number=number) for number in (1, 2, 3, 1)]
    for job in jobs:
        with sessions.begin() as session:
            session.add(job)
    assert [job.is_repeat for job in jobs] == [False, False, False, True]
    with Session(engine) as here, Session(other) as there:
        assert sorted(here.scalars(select(Routed.number))) == [1, 2, 3]
        assert there.scalars(select(Routed.number)).all() == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_without_a_flush_goes_there_too(kind: Any, engine: Engine, other: Engine) -> None:
    """A Session that tells writes by the flush, or by the class of a statement, is not asked about an INSERT."""
    with kind(engine, other).begin() as session:
        assert bulk_enqueue(session, [Routed(number=number) for number in (1, 2, 1)], wake=False) == 2
        assert once(session, 1, scope="routed")
    count = text("SELECT (SELECT count(*) FROM magik_jobs), (SELECT count(*) FROM magik_effects)")
    with engine.connect() as here, other.connect() as there:
        assert (here.execute(count).one(), there.execute(count).one()) == ((2, 1), (0, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_the_session_of_a_job_writes_on_the_connection_of_its_thread(kind: Any, engine: Engine, other: Engine) -> None:
    sessions = scoped_session(kind(engine, other))
    checked_out: list[str] = []
    with engine.connect() as own:
        event.listen(engine, "checkout", lambda *_: checked_out.append("here"))
        session = opened(for_runs(sessions), own)
        assert sessions() is session  # the application's registry knows it
        session.add(Note(number=1))
        session.flush()
        assert engine_of(session) is own
        assert session.connection(bind_arguments={"mapper": Note.__mapper__, "clause": delete(Note)}) is own
        session.commit()
        sessions.remove()
    assert checked_out == []
    with Session(engine) as here:
        assert here.scalars(select(Note.number)).all() == [1]


def test_what_belongs_elsewhere_goes_there(engine: Engine, other: Engine) -> None:
    sessions = for_runs(scoped_session(by_class(engine, other)))
    with engine.connect() as own:
        session = opened(sessions, own)
        session.add_all([Note(number=1), Copy(number=1)])
        session.commit()
        sessions.remove()
    with Session(other) as there:
        assert there.scalars(select(Copy.number)).all() == [1]


def test_statements_with_and_without_a_mapper_meet_on_one_connection(engine: Engine, other: Engine) -> None:
    """Whichever comes first: SQLAlchemy refuses an engine and a Connection of it side by side."""
    plain, mapped = text("SELECT 1"), select(Note)
    orders: list[tuple[Any, Any]] = [(plain, mapped), (mapped, plain)]
    for first, second in orders:
        sessions = for_runs(scoped_session(sessionmaker(engine, binds={Base: engine, Job: engine})))
        with engine.connect() as own:
            session = opened(sessions, own)
            session.execute(first)
            session.execute(second)
            assert session.connection() is own
            sessions.remove()


def test_the_applications_factory_stays_as_it_is(engine: Engine, other: Engine) -> None:
    factory = by_function(engine, other)
    told: list[Connection | Session] = []
    event.listen(factory, "before_commit", told.append)
    sessions = for_runs(scoped_session(factory))
    event.listen(factory, "after_commit", told.append)
    with engine.connect() as own:
        session = opened(sessions, own)
        assert (type(session).__name__, isinstance(session, factory.class_)) == ("Own", True)
        session.execute(text("SELECT 1"))
        session.commit()
        sessions.remove()
    assert told == [session, session]  # its listeners hear, also those that came later
    with factory() as plain:
        assert "magik_connection" not in plain.info
        assert type(plain) is factory.class_


def test_the_engine_is_the_one_that_writes_jobs(engine: Engine, other: Engine) -> None:
    for kind in KINDS:
        assert find(Settings(), kind(engine, other), 1).engine is engine


def test_what_no_thread_can_use_is_refused(engine: Engine) -> None:
    asynchronous = create_engine(engine.url.set(drivername="postgresql+asyncpg"), _is_async=True)
    function: Any = lambda: Session(engine)  # noqa: E731
    wrong: list[tuple[Any, str]] = [
        (sessionmaker(asynchronous), "asynchronous engine (postgresql+asyncpg)"),
        (sessionmaker(create_engine(engine.url.set(drivername="postgresql+pg8000"))), "an engine on pg8000"),
        (scoped_session(function), "other than a sessionmaker"),
        (function, "is a function"),
    ]
    for given, what in wrong:
        with pytest.raises(BootRefused, match="MAGIK_SESSION_INVALID") as refused:
            Worker(session=given).boot()
        assert what in str(refused.value)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_worker_without_transactions_is_refused(engine: Engine, driver: str) -> None:
    """What a job writes before it fails has to go back."""
    url = engine.url.set(drivername=f"postgresql+{driver}")
    autocommit = create_engine(url, isolation_level="AUTOCOMMIT", pool_size=10)
    for given in (autocommit, create_engine(url, pool_size=10).execution_options(isolation_level="AUTOCOMMIT")):
        with pytest.raises(BootRefused) as refused:
            Worker(session=sessionmaker(given)).boot()
        assert "MAGIK_SESSION_INVALID: The Session's engine is in AUTOCOMMIT" in str(refused.value)
        given.dispose()
