"""Jobs that end at once, of which a test takes thousands; each run leaves sixteen bytes in a file."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path
from uuid import UUID

from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, arg


@cache
def _file() -> int:
    """O_APPEND: the writes of several processes never mix."""
    return os.open(os.environ["BURST_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def runs(file: Path) -> Counter[UUID]:
    """How often each job has run."""
    data = file.read_bytes() if file.exists() else b""
    return Counter(UUID(bytes=data[at : at + 16]) for at in range(0, len(data), 16))


class Burst(Job, policy="system"):
    """Leaves its id and ends."""

    def perform(self, session: Session) -> None:
        os.write(_file(), self.id.bytes)


class BurstFails(Job, policy="system"):
    """Leaves its id and raises, `failures` times."""

    retries = Retries(times=5, backoff="constant", base="20ms", jitter=0)
    failures: Mapped[int] = arg(default=1)

    def perform(self, session: Session) -> None:
        os.write(_file(), self.id.bytes)
        if self.error_count < self.failures:
            raise RuntimeError("as asked")


class BurstLasts(Job, policy="system"):
    """Leaves its id and lasts a moment, long enough to be deleted meanwhile."""

    def perform(self, session: Session) -> None:
        os.write(_file(), self.id.bytes)
        time.sleep(0.01)


class BurstCounts(Job, policy="system"):
    """Leaves in a file of its own how many blocks of memory Python has in use here: leaks show, and nothing else."""

    def perform(self, session: Session) -> None:
        gc.collect()
        counted(Path(os.environ["BURST_FILE"]), self.id).write_text(str(sys.getallocatedblocks()))


def counted(file: Path, job: UUID) -> Path:
    """Where that job leaves it."""
    return file.with_name(f"{file.name}-{job}")
