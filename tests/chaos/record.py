"""The record: one file to which jobs and producers append a line for whatever they did, apart from any database.

A line is ``time pid what class job chunk``. Of a job `what` is start, effect, end or raised; of a producer asked, and
after its commit committed, repeat or undone: nothing, where the answer to the commit was lost. O_APPEND keeps the lines
of several processes whole, and what was written outlives the process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import UUID

from magik_sa import Job

VARIABLE = "CHAOS_RECORD"


@dataclass(frozen=True, slots=True)
class Line:
    """What one process did with one job at one moment."""

    at: float
    pid: int
    what: str
    job_class: str
    job: UUID
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.at:.6f} {self.pid} {self.what} {self.job_class} {self.job} {self.chunk}"


@cache
def _file() -> int:
    return os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def now() -> float:
    """Seconds since 1970; not by time.time(), which steps in one of the workers."""
    return time.clock_gettime(time.CLOCK_REALTIME)


def tell(what: str, jobs: Iterable[Job], chunk: int = 0) -> None:
    """Append a line for each of these jobs, in one write."""
    lines = (Line(now(), os.getpid(), what, type(job).__name__, job.id, chunk) for job in jobs)
    os.write(_file(), "".join(f"{line}\n" for line in lines).encode())


@contextmanager
def running(job: Job, chunk: int = 0) -> Iterator[None]:
    """The start of a run, and its end: whether it was raised or not."""
    tell("start", [job], chunk)
    try:
        yield
    except BaseException:
        tell("raised", [job])
        raise
    tell("end", [job])


def read(file: Path) -> list[Line]:
    """All lines in the order in which they were written."""
    rows = (line.split() for line in file.read_text().splitlines())
    return [Line(float(at), int(pid), what, cls, UUID(job), int(chunk)) for at, pid, what, cls, job, chunk in rows]
