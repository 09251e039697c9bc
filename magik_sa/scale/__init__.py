"""Four shapes of jobs that work and do not scale, found without running anything: ``magik check --scale``.

Each is drawn narrowly, so that what is warned of is there: what cannot be read, or may be meant, is passed over. A
warning refuses nothing. The comment ``# magik: ignore[loop]`` on the line that is named silences it.

source        the application's source: of perform, of a class, and the comments that silence
calls         what a call is: known to be slow, to ask the database, to be pure, or nothing of these
loop          a loop over what grows, in which nothing is waited for
transaction   a transaction that stays open while something slow is waited for
declared      a queue for each class; a schedule that comes before its run has to be over
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..job import Job
from .declared import dense_schedules, queue_per_class
from .loop import loops
from .source import Warned, bodies
from .transaction import transactions


def warnings(jobs: Mapping[str, type[Job]]) -> list[Warned]:
    """Everything to be said of these classes, but what a comment on its line silences."""
    return [warned for warned in _found(jobs) if not warned.silenced]


def _found(jobs: Mapping[str, type[Job]]) -> Iterator[Warned]:
    for body in bodies(jobs):
        yield from loops(body)
        yield from transactions(body)
    yield from queue_per_class(jobs)
    yield from dense_schedules(jobs)
