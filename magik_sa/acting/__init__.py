"""Acting on jobs: plain functions that the command line and a page of an application share.

states     the states of a job, and what others call them
filter     which jobs are meant
listed     what there is: a list, one row, what an act is about to meet
known      which classes and queues there are
acts       retry, discard, cancel, run_now: each takes the version of every job that was seen
batch      how an act passes over those that it cannot be done to
bounds     what all their statements are bound to

They take a Connection or a Session, act in the transaction that is open there, and leave it to the caller to commit::

    with Session(engine) as session, session.begin():
        seen = drawn(session, Filter(states=["expired"], job_class="SettleBatch"), limit=BATCH)
        result = retry(session, {job.id: job.version for job in seen})

None of them needs the application's job classes.
"""

from __future__ import annotations

from .acts import ACTS, BATCH, batches, cancel, discard, reason, retry, run_now
from .batch import Done, Left
from .filter import Filter
from .known import names
from .listed import MOST, Listed, Seen, Shown, drawn, listed, show
from .states import STATES

__all__ = [
    "ACTS",
    "BATCH",
    "MOST",
    "STATES",
    "Done",
    "Filter",
    "Left",
    "Listed",
    "Seen",
    "Shown",
    "batches",
    "cancel",
    "discard",
    "drawn",
    "listed",
    "names",
    "reason",
    "retry",
    "run_now",
    "show",
]
