"""After a COMMIT the attributes of a job stay what they were.

A fast worker may have deleted the row by then, and a job that saves where it has got to should not open a
transaction by reading itself. SQLAlchemy expires every object at a commit; a copy taken right then is put back.
At a rollback no copy is taken: what was rolled back is never shown.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import event, inspect
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from .job import Job

_COPY: Final = "_magik_committed"


@event.listens_for(Session, "after_commit")
def _take_copies(session: Session) -> None:
    """The COMMIT has succeeded and the objects are about to be expired. The release of a savepoint commits nothing."""
    if not session.expire_on_commit or session.in_nested_transaction():
        return
    for job in session.identity_map.values():
        if isinstance(job, Job):
            columns = inspect(job).mapper.column_attrs.keys()
            loaded = vars(job)
            loaded[_COPY] = {name: loaded[name] for name in columns if name in loaded}


@event.listens_for(Job, "expire", propagate=True)
def _put_back(job: Job, _: Any) -> None:
    for name, value in vars(job).pop(_COPY, {}).items():
        set_committed_value(job, name, value)


COMMITS = (_take_copies,)  # what of this module is told of a commit
