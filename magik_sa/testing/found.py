"""Which jobs wait: those that were flushed, and those that the next flush would write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from ..enqueue import Job
from ..errors import EnqueueError
from .target import Target, reading

J = TypeVar("J", bound=Job)

OPTIONS: Final = ("queue", "priority")


class Found(list[J]):
    """A list of jobs that tells, where it is empty, what was asked for and what is there instead."""

    def __init__(self, jobs: list[J], asked: str, others: list[Job]) -> None:
        super().__init__(jobs)
        self._asked, self._others = asked, others

    def __repr__(self) -> str:
        if self:
            return super().__repr__()
        return f"<no {self._asked} among {self._others!r}>" if self._others else f"<no {self._asked}: no job waits>"


def enqueued(where: Target, cls: type[J], **having: Any) -> Found[J]:
    """The jobs of `cls`, and of classes that inherit it, that wait to be performed, in the order they were built in.

    With a Session those too that it has not flushed yet; nothing is flushed. Repeats are left out, as a flush would.
    Keywords are arguments of the class, `queue` or `priority`, and have to be equal. Raises `EnqueueError`
    ``MAGIK_ARGS_INVALID`` for a keyword that is neither, or a value that the argument does not take.
    """
    wanted = {name: _wanted(cls, name, value) for name, value in having.items()}
    with reading(where) as session:
        waiting = sorted(_waiting(session), key=lambda job: job.id)
        jobs = [job for job in waiting if isinstance(job, cls)]
        fitting = [job for job in jobs if all(getattr(job, name) == value for name, value in wanted.items())]
    return Found(fitting, f"{cls.__name__}({', '.join(_told(cls, *asked) for asked in having.items())})", list(waiting))


def _waiting(session: Session) -> Iterator[Job]:
    """Live rows, then new jobs, without those whose key is there already."""
    rows = session.scalars(select(Job).where(Job.finished_at.is_(None), Job.expired_at.is_(None))).all()
    keys = {(job.job_class, job.key_digest) for job in rows}
    yield from (job for job in rows if job not in session.deleted)
    for job in session.new:
        if isinstance(job, Job) and (job.key_digest is None or (job.job_class, job.key_digest) not in keys):
            keys.add((job.job_class, job.key_digest))
            yield job


def _wanted(cls: type[Job], name: str, value: Any) -> Any:
    """The value as a job would show it: ``amount="12.50"`` asks for ``Decimal("12.50")``."""
    if name in OPTIONS:
        return value
    if name not in cls.__magik__.arguments:
        raise EnqueueError("MAGIK_ARGS_INVALID", f"{cls.__name__} has no argument {name!r} to be found by.", field=name)
    return cls.__magik__.arguments[name].take(value)[0]


def _told(cls: type[Job], name: str, value: Any) -> str:
    """What is sensitive on a job is so here."""
    argument = cls.__magik__.arguments.get(name)
    return f"{name}=…" if argument is not None and argument.sensitive else f"{name}={value!r}"
