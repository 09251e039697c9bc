"""Whether a run has left its Session alone: then its end may be written for it, with those of others.

The idea is that of batched acknowledgements in brokers; here only a run that has nothing to commit takes part.
"""

from __future__ import annotations

from sqlalchemy import inspect
from sqlalchemy.orm import Session

from . import commits, committed, fence, routing, successor
from .job import Job

_OURS = frozenset([*fence.COMMITS, *commits.COMMITS, *committed.COMMITS])


def is_unused(job: Job, session: Session) -> bool:
    """No statement was sent, nothing waits to be, and nobody has asked to be told of the commit."""
    return not (
        routing.is_used(session)
        or successor.are_held(session)
        or inspect(job).session is not session  # closed by the job, which is told so
        or _is_followed(session)
    )


def is_committed_as_ever(session: Session) -> bool:
    """Nobody has put anything in before its commit: neither a listener, nor a `commit` of the application's own."""
    plain = getattr(session.commit, "__func__", None) is Session.commit
    return plain and _OURS.issuperset(session.dispatch.before_commit)


def _is_followed(session: Session) -> bool:
    """By whoever puts something in before the commit, or is told of it."""
    return not (is_committed_as_ever(session) and _OURS.issuperset(session.dispatch.after_commit))
