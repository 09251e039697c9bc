"""One job performed here and now: what it does, without what becomes of its row."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session, scoped_session

from .. import around
from ..attribute import read_all, settle
from ..boot import policy_fault
from ..carried import context
from ..enqueue import Job
from ..errors import RunError
from ..verb import authorise


def perform(job: Job, session: Session | scoped_session[Any]) -> None:
    """Perform `job` as a worker would: arguments checked, policy asked, inside everything that is around it.

    `context` is what it was when the job was built. `session` is the job's Session; it is flushed at the end, and
    nothing is committed. The job's row, if it has one, stays as it is, so the job need not have been added.

    Everything that is raised comes out, `Snooze` and `Discard` too. Raises `RunError` ``MAGIK_POLICY_DENIED`` where the
    policy says no, and `EnqueueError` ``MAGIK_ARGS_INVALID`` where an argument does not fit its declaration.
    """
    own = session() if isinstance(session, scoped_session) else session
    token = context.set(job.context or {})
    try:
        settle(job)
        read_all(job)
        _authorise(job, own)
        around.perform(job, own)
        own.flush()
    finally:
        context.reset(token)


def _authorise(job: Job, session: Session) -> None:
    if fault := policy_fault(type(job)):
        raise fault
    if not authorise(job, session):
        raise RunError("MAGIK_POLICY_DENIED", f"The policy {type(job).__magik__.policy!r} denied this job.")
