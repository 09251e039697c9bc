"""Time that passes for the jobs alone.

No clock is moved, neither the server's nor the process's: what stands in the queue's tables grows older instead. So
everything that compares with the database's now() agrees, a worker that listens included, and what is written
afterwards counts from now as it always does.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from ..columns import aware
from ..duration import duration
from ..enqueue import Job
from ..home import located
from .target import Target, connection_of, reading, writing

TIMES: Final = {
    "magik_jobs": ("run_at", "enqueued_at", "failed_at", "finished_at", "expired_at"),
    "magik_job_schedules": ("next_run_at", "last_run_at", "paused_at", "tried_at", "rests_until"),
    "magik_queues": ("paused_at",),
    "magik_claims": ("claimed_at",),
    "magik_effects": ("done_at",),
}


class Clock:
    """``Clock(session).move("1h")``: an hour passes for the jobs; what was to wait for it is due at the next `drain`.

    With a Session in its transaction only, and its unflushed jobs are flushed first; with what makes Sessions for
    everything that is committed. No version is raised: nobody's run is superseded by the time that passes.
    """

    def __init__(self, where: Target) -> None:
        self._where, self.moved = where, timedelta(0)

    def __repr__(self) -> str:
        return f"<Clock moved by {self.moved}>"

    def move(self, span: str | timedelta) -> None:
        """Let this much time pass ("90s", "1h", "7d"). Raises `DeclarationError` ``MAGIK_DURATION_INVALID``."""
        passed = duration(span, field="move", zero=True)
        with writing(self._where) as connection:
            for statement in _older():
                connection.execute(text(statement), {"seconds": passed.total_seconds()})
        if isinstance(self._where, Session):
            _show(self._where, passed)
        self.moved += passed

    def move_to(self, moment: datetime) -> None:
        """Let time pass until then, by `now`. Raises as `move` does where that is over already.

        A moment needs a time zone: `EnqueueError` ``MAGIK_ARGS_INVALID``.
        """
        self.move(aware(moment, "move_to") - self.now())

    def now(self) -> datetime:
        """What time it is for the jobs: the database's clock, and what was moved."""
        with reading(self._where) as session:
            now: datetime = connection_of(session).execute(select(func.clock_timestamp())).scalar_one()
        return now + self.moved


def _older() -> Iterator[str]:
    for name, columns in TIMES.items():
        changes = ", ".join(f"{column} = {column} - make_interval(secs => :seconds)" for column in columns)
        yield located("UPDATE {schema}{name} SET {changes}", name=name, changes=changes)


def _show(session: Session, passed: timedelta) -> None:
    """The jobs that the Session has loaded are older by as much."""
    for job in session.identity_map.values():
        if isinstance(job, Job):
            loaded = {name: vars(job).get(name) for name in TIMES["magik_jobs"]}
            for name, value in loaded.items():
                if isinstance(value, datetime):
                    set_committed_value(job, name, value - passed)
