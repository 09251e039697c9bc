"""Who may have a job run: one function a verb, asked right before the job is performed.

A job class names its verb in its header; ``policy="system"`` says that its jobs need nobody's leave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import iscoroutine
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .calling import misfit
from .errors import DeclarationError, RunError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from .job import Job

SYSTEM: Final = "system"
REMEDY: Final = "Write a plain function (job, session) that returns True or False."

Policy = Callable[[Any, "Session"], bool]
P = TypeVar("P", bound=Policy)

_verbs: dict[str, Policy] = {}
verbs: Final[Mapping[str, Policy]] = MappingProxyType(_verbs)


def policy(verb: str) -> Callable[[P], P]:
    """Register a function ``(job, session) -> bool`` as the policy of a verb.

    A verb has one policy: another function under the same verb raises `DeclarationError` ``MAGIK_NAME_TAKEN``. The
    same function again, as after a reload of its module, takes the place of its older self. What is async, a generator
    or takes something else is refused with ``MAGIK_OPTION_INVALID``.
    """
    if type(verb) is not str or not verb:
        raise DeclarationError("MAGIK_OPTION_INVALID", f'@policy({verb!r}): write @policy("verb").', field="policy")
    if verb == SYSTEM:
        raise DeclarationError(
            "MAGIK_NAME_RESERVED", f"{SYSTEM!r} means that nobody is asked.", field="policy", remedy=""
        )

    def register(function: P) -> P:
        if fault := misfit(function, "job", "session"):
            what = f"@policy({verb!r}) on {'.'.join(_place(function))}: it {fault}."
            raise DeclarationError("MAGIK_OPTION_INVALID", what, field="policy", remedy=REMEDY)
        taken = _verbs.get(verb)
        if taken is not None and _place(taken) != _place(function):
            what = f"The verb {verb!r} has the policy {'.'.join(_place(taken))} already."
            raise DeclarationError("MAGIK_NAME_TAKEN", what, field="policy", remedy="Give one of the two another verb.")
        _verbs[verb] = function
        return function

    return register


def authorise(job: Job, session: Session) -> bool:
    """Ask the policy of the job's verb. A verb that nobody defined, or that was never named, allows nothing.

    Raises `RunError` ``MAGIK_POLICY_INVALID`` where the policy answers neither True nor False: an object that merely is
    there, such as a coroutine nobody awaited, is no leave.
    """
    verb = type(job).__magik__.policy
    if verb == SYSTEM:
        return True
    return verb in _verbs and _decided(verb, _verbs[verb](job, session))


def _decided(verb: str | None, answer: object) -> bool:
    if isinstance(answer, bool):
        return answer
    if iscoroutine(answer):
        answer.close()  # or Python warns, later and elsewhere, that it was never awaited
    what = f"The policy {verb!r} returned {type(answer).__name__}, which is neither True nor False."
    raise RunError("MAGIK_POLICY_INVALID", what, field="policy")


def _place(function: Policy) -> tuple[str, str]:
    return getattr(function, "__module__", "?"), getattr(function, "__qualname__", repr(function))
