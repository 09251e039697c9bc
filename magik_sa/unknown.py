"""What rows of a class that this process does not know read as."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy.orm import Mapper, Session

from .errors import EnqueueError
from .job import Job, _declared


class UnknownJob(Job, policy="system", name="magik_sa.UnknownJob"):
    """A job whose class is not declared here. It can be looked at; a flush of a changed or deleted one is refused."""

    def perform(self, session: Session) -> None:  # noqa: ARG002
        """Never called: a worker claims the jobs of the classes it knows."""
        raise self.read_only()

    def read_only(self) -> EnqueueError:
        """The refusal to write such a row."""
        what = f"The class of {self!r} is not declared in this process."
        return EnqueueError("MAGIK_UNKNOWN_JOB_READ_ONLY", what, field="job_class")


class Known(dict[Any, Mapper[Any]]):
    """Stored name → mapper, as SQLAlchemy looks it up for each row; a name it does not find is an `UnknownJob`."""

    def __missing__(self, name: object) -> Mapper[Any]:
        return UNKNOWN


UNKNOWN: Final[Mapper[Any]] = UnknownJob.__mapper__
del _declared[UnknownJob.__magik__.name]
Job.__mapper__.polymorphic_map = Known(Job.__mapper__.polymorphic_map)
