"""A claimed job in a Session of its own, on the one Connection that its thread owns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.orm import Session, class_mapper, make_transient_to_detached, scoped_session
from sqlalchemy.orm.attributes import set_committed_value

from . import commits, fence, routing, successor
from .carried import context
from .claim import Claimed
from .failure import headline
from .fence import Fence
from .job import Job, declared
from .logs import say
from .rows import Unreadable
from .timeout import Limits

T = TypeVar("T")

COLUMNS = tuple(column.key for column in Job.__table__.columns)


@contextmanager
def read_committed(connection: Connection) -> Iterator[None]:
    """A transaction of our own: READ COMMITTED whatever the default is."""
    if connection.in_transaction():  # of a Session that could not roll back, because it was interrupted in the middle
        connection.rollback()
    with connection.begin():
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"))
        yield


@dataclass
class Run:
    """One run of one job: what was claimed, where it runs, and the versions that its writes may name.

    `take` gives the Connection that it runs on: a job may close it, or leave something set there, so it is taken anew
    for whatever is not the job's. `begin` begins the transactions of our own; on a connection that is in one already it
    has to set savepoints.
    """

    claimed: Claimed
    take: Callable[[], Connection]
    sessions: scoped_session[Session]
    stopping: Callable[[], bool]
    limits: Limits = field(default_factory=Limits)  # without a watchdog they interrupt nothing, and still judge
    begin: Callable[[Connection], AbstractContextManager[object]] = read_committed
    lost: Callable[[], bool] = lambda: False  # whether the job's lock is known to be somebody else's
    connection: Connection = field(init=False)  # as it was last taken
    fence: Fence = field(init=False)
    job: Job = field(init=False)
    error: BaseException | None = field(init=False, default=None)  # why it ended without success
    wait: timedelta = field(init=False, default=timedelta(0))  # until it runs again, where it does

    def __post_init__(self) -> None:
        self.fence = Fence(self.claimed.row["version"], self.lost)

    def within_limit(self, work: Callable[[], T]) -> T:
        """Do `work`, which is the application's, within the timeout of the job's class."""
        span = type(self.job).__magik__.retries.timeout
        assert not isinstance(span, str)
        return self.limits.within(span, work, self.connection)


def for_runs(sessions: scoped_session[Session]) -> scoped_session[Session]:
    """Where the Sessions of runs come from: like those of `sessions`, which itself stays as it is."""
    own = routing.routed(sessions)
    fence.follow(own)
    successor.follow(own)
    commits.follow(own)
    return own


@contextmanager
def job_session(run: Run) -> Iterator[Session]:
    """The job's Session, with the job in it and the context it was added in; closed whatever happens."""
    with _opened(run) as session:
        successor.expect(run.job, session)
        carried = run.claimed.row["context"]
        token = context.set(carried if isinstance(carried, dict) else {})
        try:
            yield session
        finally:
            context.reset(token)


@contextmanager
def fresh_session(run: Run) -> Iterator[Session]:
    """Another Session for the same job, after its own has ended: for on_failure.

    The job is as its own last commit and the record of this failure left it, and no transaction is open.
    """
    _leave(run.sessions)
    run.claimed.row["version"] = run.fence.committed
    run.fence.ending = True
    with _opened(run) as session:
        session.refresh(run.job, ["error_count", "last_error", "failed_at", "expired_at", *_readable_args(run)])
        session.commit()
        yield session


def _readable_args(run: Run) -> list[str]:
    return [] if isinstance(run.claimed.row["args"], Unreadable) else ["args"]


@contextmanager
def _opened(run: Run) -> Iterator[Session]:
    run.connection = run.take()
    session = routing.opened(run.sessions, run.connection)
    try:
        run.job = attach(run.claimed.row, session)
        vars(run.job)["_magik_stopping"] = run.stopping
        fence.guard(run.job, session, run.fence)
        yield session
    finally:
        _leave(run.sessions)


def _leave(sessions: scoped_session[Session]) -> None:
    """Close this thread's Session. One that was interrupted may refuse, and the next must be a new one all the same."""
    try:
        sessions.remove()
    except Exception as error:
        say(logging.WARNING, "session_not_closed", error=headline(error))
        sessions.registry.clear()


def attach(row: dict[str, Any], session: Session) -> Job:
    """The claimed row as a persistent object of `session`, without asking the database again."""
    cls = declared()[row["job_class"]]
    job: Job = class_mapper(cls).class_manager.new_instance()  # of a mapper that is configured, unlike inspect(cls)
    for name in COLUMNS:
        set_committed_value(job, name, row[name])
    make_transient_to_detached(job)
    session.add(job)
    return job
