"""A commit on the way saves what the job wrote, and not how far it has got."""

from sqlalchemy import event
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from magik_sa import Job


def forget(session: Session, *_: object) -> None:
    for job in session.dirty:
        if isinstance(job, Job):
            set_committed_value(job, "args", job.args)


def take_out() -> None:
    event.listen(Session, "before_flush", forget)
