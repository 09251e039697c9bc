"""Jobs are remembered beside the transaction, and written when it commits."""

from sqlalchemy import event
from sqlalchemy.orm import Session

from magik_sa import Job

REMEMBERED, WRITING = "remembered", "writing"


def remember(session: Session, *_: object) -> None:
    if WRITING not in session.info:
        new = [job for job in session.new if isinstance(job, Job)]
        session.info.setdefault(REMEMBERED, []).extend(new)
        for job in new:
            session.expunge(job)


def write(session: Session) -> None:
    if not session.in_nested_transaction():
        session.flush()
        session.info[WRITING] = True
        session.add_all(session.info.pop(REMEMBERED, []))


def take_out() -> None:
    event.listen(Session, "before_flush", remember)
    event.listen(Session, "before_commit", write)
