"""The worker: one process, one thread a job, one connection that holds every lock; or several under a supervisor.

locker      claims jobs and gives their locks back; alone on the locking connection
performer   runs one job at a time in a Session of its own
scheduler   fires the ticks of schedules that are due
worker      starts and stops them
signals     SIGTERM and SIGINT, from the first instruction
supervisor  starts, replaces and drains several processes, each of which is all of the above
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .worker import Worker

__all__ = ["Worker"]


def __getattr__(name: str) -> Any:
    if name != "Worker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .worker import Worker

    return Worker
