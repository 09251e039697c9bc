"""What an application puts around each perform: its own context, a request's, a log's.

A generator function of the job and its Session is entered before perform, and left before the job is finished: what
it raises is the job's failure, and what it wrote through the Session is committed with the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import isgeneratorfunction
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import DeclarationError
from .forked import in_parent

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from .job import Job

Around = Callable[[Any, "Session"], Iterator[None]]
A = TypeVar("A", bound=Around)

_around: dict[tuple[str, str], Around] = {}


def around_perform(function: A) -> A:
    """Have every perform of this process run inside `function`, where it yields.

    Of several the first to be registered is the outermost. The same function again, as after a reload of its module,
    takes the place of its older self. Raises `DeclarationError` ``MAGIK_OPTION_INVALID`` for what is no generator
    function.
    """
    given: Any = function
    if not isgeneratorfunction(given):
        what = f"@around_perform on {given!r}: it is no generator function."
        remedy = "Write a function (job, session) that yields once."
        raise DeclarationError("MAGIK_OPTION_INVALID", what, field="around_perform", remedy=remedy)
    _around[function.__module__, function.__qualname__] = function
    return function


def is_any() -> bool:
    """Whether something was registered."""
    return bool(_around)


def perform_alone(job: Job) -> None:
    """Perform a job that takes no Session, where nothing was registered."""
    in_parent(job.perform)


def perform(job: Job, session: Session) -> None:
    """Perform the job inside everything that was registered.

    An error of the job's stays one: what is around may look at it or raise another, and cannot make it a success.
    """
    if not _around:
        _perform(job, session)
        return
    raised: list[BaseException] = []
    try:
        with ExitStack() as stack:
            for function in tuple(_around.values()):
                stack.enter_context(contextmanager(function)(job, session))
            _performed(job, session, raised)
        if raised:
            raise raised[0]
    finally:
        raised.clear()  # its traceback leads here, and nothing would let go of what it holds


def _performed(job: Job, session: Session, raised: list[BaseException]) -> None:
    try:
        _perform(job, session)
    except BaseException as error:
        raised.append(error)
        raise


def _perform(job: Job, session: Session) -> None:
    in_parent(job.perform if type(job).__magik__.alone else partial(job.perform, session))
