"""A claimed job in a Session of its own, on the one Connection that its thread owns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from operator import itemgetter
from typing import TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.orm import Mapper, Session, class_mapper, make_transient_to_detached, scoped_session
from sqlalchemy.orm.attributes import instance_state

from . import commits, fence, routing, successor
from .claim import Claimed
from .failure import headline
from .fence import Fence
from .job import Job, class_of
from .logs import say
from .one_exchange import OneExchange
from .timeout import Limits

T = TypeVar("T")

COLUMNS = tuple(column.key for column in Job.__table__.columns)
WHOLE = frozenset(COLUMNS)
_values = itemgetter(*COLUMNS)  # of a claimed row


@contextmanager
def read_committed(connection: Connection) -> Iterator[None]:
    """A transaction of our own: READ COMMITTED whatever the default is."""
    if connection.in_transaction():  # of a Session that could not roll back, because it was interrupted in the middle
        connection.rollback()
    with connection.begin():
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"))
        yield


@dataclass(slots=True)
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
    using: Callable[[], None] = lambda: None  # called when the job first uses that Connection
    renew: Callable[[], None] = lambda: None  # has `take` connect anew, where the connection is the thread's own
    lost: Callable[[], bool] = lambda: False  # whether the job's lock is known to be somebody else's
    in_one: OneExchange | None = None  # with its commit, where that can be
    together: bool = False  # whether its end, if it wrote nothing, may be left to be written with those of others
    connection: Connection = field(init=False)  # as it was last taken
    fence: Fence = field(init=False)
    job: Job = field(init=False)  # in its Session, once that is opened
    error: BaseException | None = field(init=False, default=None)  # why it ended without success
    wait: timedelta = field(init=False, default=timedelta(0))  # until it runs again, where it does
    took: float = field(init=False, default=0.0)  # milliseconds

    def __post_init__(self) -> None:
        self.fence = Fence(self.claimed.row["version"], self.lost)

    def within_limit(self, work: Callable[[], T], connection: Connection | None) -> T:
        """Do `work`, which is the application's and may use that Connection, within the timeout of the job's class."""
        span = type(self.job).__magik__.retries.timeout
        assert not isinstance(span, str)
        return self.limits.within(span, work, connection)


def for_runs(sessions: scoped_session[Session]) -> scoped_session[Session]:
    """Where the Sessions of runs come from: like those of `sessions`, which itself stays as it is."""
    own = routing.routed(sessions)
    fence.follow(own)
    successor.follow(own)
    commits.follow(own)
    return own


@contextmanager
def opened(run: Run) -> Iterator[Session]:
    """A Session for the job as it is by now, with the job in it; closed whatever happens."""
    run.connection = run.take()
    session = routing.opened(run.sessions, run.connection, run.using)
    try:
        session.add(run.job)
        fence.guard(run.job, session, run.fence)
        yield session
    finally:
        routing.let_go(session)
        _leave(run.sessions)


@contextmanager
def fresh_session(run: Run) -> Iterator[Session]:
    """Another Session for the same job, after its own has ended: for on_failure.

    The job is as its own last commit and the record of this failure left it, and no transaction is open.
    """
    _leave(run.sessions)
    run.claimed.row["version"] = run.fence.committed
    run.fence.ending = True
    run.job = loaded(run)
    with opened(run) as session:
        session.refresh(run.job, ["error_count", "last_error", "failed_at", "expired_at", "args"])
        session.commit()
        yield session


def _leave(sessions: scoped_session[Session]) -> None:
    """Close this thread's Session. One that was interrupted may refuse, and the next must be a new one all the same."""
    try:
        sessions.remove()
    except Exception as error:
        say(logging.WARNING, "session_not_closed", error=headline(error))
        sessions.registry.clear()


@cache
def _mapper(cls: type[Job]) -> Mapper[Job]:
    return class_mapper(cls)  # configured, unlike inspect(cls)


@cache
def is_whole(cls: type[Job]) -> bool:
    """Whether a claimed row is all that a job of this class is made of: no table of its own, no relationship."""
    return set(_mapper(cls).attrs.keys()) <= WHOLE


def loaded(run: Run) -> Job:
    """The claimed row as the object that a Session would have loaded, without asking the database again."""
    row = run.claimed.row
    cls = class_of(row["job_class"])
    mapper = _mapper(cls)
    job: Job = mapper.class_manager.new_instance()
    vars(job).update(zip(COLUMNS, _values(row), strict=True))  # as SQLAlchemy's own loading does: no event, no history
    if is_whole(cls):
        instance_state(job).key = mapper.identity_key_from_primary_key((run.claimed.id,))
    else:
        make_transient_to_detached(job)  # which also has what is not here loaded when it is asked for
    vars(job)["_magik_stopping"] = run.stopping
    return job
