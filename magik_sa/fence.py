"""The fencing token: which version of its row a run may still write over.

Every write of a job raises its `version` and names the one before, so a run whose row went on without it (another
worker has the job, or it was moved or cancelled) writes nothing more. A run may only ever name a version that it
read at its claim or made itself: one that it happens to load later is somebody else's.

A run whose lock is known to be somebody else's saves nothing more on its way: else the one that has the job now would
find its row moved at every commit, and begin again and again beside it. Its end is left to the version: what is done
first counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction, scoped_session, sessionmaker
from sqlalchemy.orm.attributes import set_committed_value

from .job import Job
from .outcome import Superseded
from .version import following

_KEY = "_magik_fence"


class Fence:
    """`committed`: the version that our last commit left. `pending`: the same, or what our open flush made of it.

    `lost` says whether the job's lock is somebody else's by now, `ending` that the commit to come is the run's last.
    """

    def __init__(self, version: int, lost: Callable[[], bool]) -> None:
        self.committed = self.pending = version
        self.lost, self.ending = lost, False
        self.savepoints: list[int] = []  # what was pending when each of the open ones was set

    def moved(self) -> None:
        """A write of ours has committed outside the job's Session."""
        self.committed = following(self.committed)
        self.pending = self.committed


def guard(job: Job, session: Session, fence: Fence) -> None:
    """From here on `fence` follows what `session` does to `job`."""
    vars(job)[_KEY] = fence
    session.info[_KEY] = job


def follow(sessions: scoped_session[Session] | sessionmaker[Session]) -> None:
    """Have the Sessions of this factory keep the fences of the jobs that run in them. Once a factory."""
    event.listen(sessions, "before_commit", _committing)
    event.listen(sessions, "after_flush", _flushed)
    event.listen(sessions, "after_commit", _committed)
    event.listen(sessions, "after_rollback", _rolled_back)
    event.listen(sessions, "after_transaction_create", _begun)
    event.listen(sessions, "after_transaction_end", _ended)


def _of(session: Session) -> Fence | None:
    job = session.info.get(_KEY)
    return None if job is None else job.__dict__[_KEY]


def _committing(session: Session) -> None:
    """Called for the release of a savepoint too."""
    if (fence := _of(session)) is not None and not fence.ending and fence.lost():
        raise Superseded


def _flushed(session: Session, _: Any) -> None:
    if (fence := _of(session)) is not None and "version" in session.info[_KEY].__dict__:
        fence.pending = session.info[_KEY].__dict__["version"]


def _committed(session: Session) -> None:
    """Called for the release of a savepoint too, which commits nothing."""
    if (fence := _of(session)) is not None and not session.in_nested_transaction():
        fence.committed = fence.pending


def _rolled_back(session: Session) -> None:
    """Called for a rollback to a savepoint too: what was flushed before it still stands."""
    if (fence := _of(session)) is not None:
        fence.pending = fence.savepoints[-1] if session.in_nested_transaction() else fence.committed


def _begun(session: Session, transaction: SessionTransaction) -> None:
    """After the flush that a savepoint begins with."""
    if transaction.nested and (fence := _of(session)) is not None:
        fence.savepoints.append(fence.pending)


def _ended(session: Session, transaction: SessionTransaction) -> None:
    if transaction.nested and (fence := _of(session)) is not None:
        fence.savepoints.pop()


@event.listens_for(Job, "refresh", propagate=True)
def _refreshed(job: Job, _: Any, __: Any) -> None:
    """A rollback makes the row load again; a version that is not our own is not ours to name."""
    fence = job.__dict__.get(_KEY)
    if fence is not None and job.__dict__.get("version", fence.pending) != fence.pending:
        set_committed_value(job, "version", fence.pending)


COMMITS = (_committing, _committed)  # what of this module is told of a commit
