"""Everything that is due, run here: the jobs one after the other, each by the rules of a worker.

What a run comes to is decided where a worker's runs are: policy, retries, dead letters, on_failure, Snooze, Discard,
successors. Only the claim is another.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from sqlalchemy import Connection

from .. import duration
from ..boot import policy_fault
from ..claim import Claimed
from ..enqueue import Job, declared
from ..errors import KitError
from ..failure import headline
from ..job_session import Run
from ..outcome import Discard, Outcome
from ..run import run
from ..timeout import Limits
from .due import Due
from .stage import Stage, staged
from .target import Target

LIMIT: Final = 1_000

T = TypeVar("T")


class Judged(Limits):
    """Limits that tell who has lasted too long, and end nothing: no watchdog interrupts anything here."""

    def within(self, span: timedelta | None, work: Callable[[], T], connection: Connection | None = None) -> T:  # noqa: ARG002
        """``work()``, which may have been too long. The connection is whole, and not given up: the test is on it."""
        return super().within(span, work)


@dataclass(frozen=True)
class Ran:
    """One run of one job: `outcome` is what it came to, `error` why it ended without success.

    `wait` is how long it was put off where it is tried again or snoozes.
    """

    id: UUID
    cls: type[Job]
    outcome: Outcome
    error: BaseException | None = None
    wait: timedelta = timedelta(0)

    def __repr__(self) -> str:
        later = f" in {duration.text(self.wait)}" if self.outcome in (Outcome.RETRY, Outcome.SNOOZED) else ""
        why = f": {headline(self.error).splitlines()[0]}" if self.error is not None else ""
        return f"<{self.cls.__name__} {self.id} {self.outcome.value}{later}{why}>"


def drain(where: Target, *, queue: str | None = None, limit: int = LIMIT, raises: bool = False) -> list[Ran]:
    """Run every job that is due, those that they add included, until none is. Returns the runs in their order.

    With a Session in its transaction, which it flushes first and does not commit; with what makes Sessions on what is
    committed. `queue` runs the jobs of one queue only. A job that is put off is not run twice, however short the wait.

    With ``raises=True`` the first error of a job comes out, after it was recorded as it would be. Raises `KitError`
    ``MAGIK_DRAIN_ENDLESS`` where jobs are due after `limit` runs, ``MAGIK_TEST_TARGET_INVALID`` where jobs cannot be,
    and `BootError` for a job whose class no worker would start with.
    """
    ran: list[Ran] = []
    with staged(where) as stage:
        due = Due(stage, queue)
        while _next(stage, due, ran, limit):
            if ran[-1].wait:
                due.leave(ran[-1].id)
            _raise(ran[-1], raises)
    return ran


def _next(stage: Stage, due: Due, ran: list[Ran], limit: int) -> bool:
    """Run one more. False where none is due."""
    with due.claimed() as claimed:
        if claimed is None:
            return False
        if len(ran) >= limit:
            raise _endless(ran)
        ran.append(_run(stage, claimed))
    return True


def _run(stage: Stage, claimed: Claimed) -> Ran:
    cls = declared()[claimed.row["job_class"]]
    if fault := policy_fault(cls):
        raise fault
    this = Run(claimed, lambda: stage.connection, stage.sessions, lambda: False, Judged(), stage.begin)
    outcome = run(this)
    return Ran(claimed.id, cls, outcome, this.error, this.wait)


def _raise(ran: Ran, raises: bool) -> None:
    """Raise what was asked for, and always: what could not be recorded, and what the test itself says in a job."""
    asked = raises and not isinstance(ran.error, Discard)
    if ran.error is not None and (asked or ran.outcome is Outcome.UNRECORDED or _of_the_test(ran.error)):
        raise ran.error


def _of_the_test(error: BaseException) -> bool:
    """Ctrl-C, and ``pytest.fail`` or ``pytest.skip`` in what a job calls."""
    pytest: Any = sys.modules.get("pytest")
    own = () if pytest is None else (pytest.fail.Exception, pytest.skip.Exception, pytest.exit.Exception)
    return isinstance(error, (KeyboardInterrupt, *own))


def _endless(ran: list[Ran]) -> KitError:
    names = ", ".join(sorted({run.cls.__name__ for run in ran[-10:]}))
    return KitError("MAGIK_DRAIN_ENDLESS", f"Jobs are still due after {len(ran)} runs; the last were of {names}.")
