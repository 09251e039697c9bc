"""The fencing token: which version of its row a run may still write over.

Every write of a job raises its `version` and names the one before, so a run whose row went on without it (another
worker has the job, or it was moved or cancelled) writes nothing more. A run may only ever name a version that it
read at its claim or made itself: one that it happens to load later is somebody else's.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.orm.attributes import set_committed_value

from .job import Job

_KEY = "_magik_fence"


class Fence:
    """`committed`: the version that our last commit left. `pending`: the same, or what our open flush made of it."""

    def __init__(self, version: int) -> None:
        self.committed = self.pending = version

    def moved(self) -> None:
        """A write of ours has committed outside the job's Session."""
        self.committed += 1
        self.pending = self.committed


def guard(job: Job, session: Session, fence: Fence) -> None:
    """From here on `fence` follows what `session` does to `job`."""
    job.__dict__[_KEY] = fence
    session.info[_KEY] = job


def follow(sessions: scoped_session[Session] | sessionmaker[Session]) -> None:
    """Have the Sessions of this factory keep the fences of the jobs that run in them. Once a factory."""
    event.listen(sessions, "after_flush", _flushed)
    event.listen(sessions, "after_commit", _committed)
    event.listen(sessions, "after_rollback", _rolled_back)


def _flushed(session: Session, _: Any) -> None:
    if (job := session.info.get(_KEY)) is not None and "version" in job.__dict__:
        job.__dict__[_KEY].pending = job.__dict__["version"]


def _committed(session: Session) -> None:
    if (job := session.info.get(_KEY)) is not None:
        job.__dict__[_KEY].committed = job.__dict__[_KEY].pending


def _rolled_back(session: Session) -> None:
    if (job := session.info.get(_KEY)) is not None:
        job.__dict__[_KEY].pending = job.__dict__[_KEY].committed


@event.listens_for(Job, "refresh", propagate=True)
def _refreshed(job: Job, _: Any, __: Any) -> None:
    """A rollback makes the row load again; a version above our own is not ours to name."""
    fence = job.__dict__.get(_KEY)
    if fence is not None and job.__dict__.get("version", 0) > fence.pending:
        set_committed_value(job, "version", fence.pending)
