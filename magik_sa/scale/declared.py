"""The shapes that stand in declarations: ``queues`` and ``schedule``."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from ..duration import text
from ..job import Job
from ..schedule import Schedule
from .source import Warned, class_of, is_silenced

FEWEST: Final = 3  # classes, below which a queue of its own for each is no habit
TICKS: Final = 60  # that are looked at of a cron: its shortest distance is among them, or rare
WHY_QUEUES: Final = (
    "A queue is for a group of jobs that needs workers of its own (slow ones, urgent ones): each has to be named to a"
    " worker, and may be forgotten. Let classes share queues, and use priority= for what is more urgent."
)
WHY_SCHEDULE: Final = (
    "A run may last longer than it takes until the next tick: runs overlap, and pile up when all are slow. Make the"
    " timeout shorter than the distance of the ticks, or declare idempotent_by, so that one is live at a time."
)


def queue_per_class(jobs: Mapping[str, type[Job]]) -> Iterator[Warned]:
    """Every class has a queue of its own, none of them the default one, and there are some."""
    places = {name: _place(cls, "queues") for name, cls in jobs.items()}
    counted = {name: cls.__magik__.queue for name, cls in jobs.items() if not places[name][1]}
    times = Counter(counted.values())
    if len(counted) >= FEWEST and "default" not in times and max(times.values()) == 1:
        first = next(iter(counted))
        said = f"{len(counted)} job classes and a queue for each: {', '.join(sorted(times))}"
        yield Warned("queues", places[first][0], first, said, WHY_QUEUES)


def dense_schedules(jobs: Mapping[str, type[Job]]) -> Iterator[Warned]:
    """The next tick comes before a run of this one has to be over, and no key keeps them apart."""
    for name, cls in jobs.items():
        limit = cls.__magik__.retries.timeout
        for schedule in cls.__magik__.schedules if limit is not None and cls.__magik__.idempotent_by is None else ():
            assert isinstance(limit, timedelta)
            if (distance := shortest(schedule)) < limit:
                said = f"the schedule {schedule.row(name)!r} ticks after {text(distance)}, a run may last {text(limit)}"
                where, silenced = _place(cls, "schedule")
                yield Warned("schedule", where, name, said, WHY_SCHEDULE, silenced)


def shortest(schedule: Schedule) -> timedelta:
    """Between two ticks in succession."""
    if isinstance(schedule.every, timedelta):
        return schedule.every
    ticks = [schedule.first(datetime.now(UTC))]
    for _ in range(TICKS):
        ticks.append(schedule.next(ticks[-1], ticks[-1]))
    return min(after - before for before, after in pairwise(ticks))


def _place(cls: type[Job], shape: str) -> tuple[str, bool]:
    """The line of the class, or of its schedule, and whether a comment there, or on the line of the class, silences."""
    found = class_of(cls)
    if found is None:
        return f"{cls.__module__}.{cls.__qualname__}", False
    file, tree, lines = found
    line = next((node.lineno for node in tree.body if shape == "schedule" and _gives(node, "schedule")), tree.lineno)
    said = [*range(tree.lineno, tree.body[0].lineno), line]
    return f"{file}:{line}", any(is_silenced(shape, lines.get(each, "")) for each in said)


def _gives(node: ast.stmt, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)
