"""Two real worker processes, and the one that is killed in the middle of its work."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqlalchemy import ColumnElement, exists, func, select
from sqlalchemy.orm import Session

from .jobs import QUEUE, SettlePayment
from .models import Kill, LedgerEntry, Start

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("worker-1", "worker-2")


class WorkerProcess:
    """``python -m magik_sa.worker examples.settlement.jobs`` in a process group of its own; its log in `folder`."""

    def __init__(self, name: str, url: str, concurrency: int, folder: Path) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        command = [sys.executable, "-m", "magik_sa.worker", SettlePayment.__module__]
        command += ["--queue", QUEUE, "--concurrency", str(concurrency), "--app-name", name]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "MAGIK_DATABASE_URL": url},  # not an argument: those are for everybody to see
                stdin=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ready(self) -> bool:
        """Whether it listens for jobs; its log says so. Raises `WorkerEnded` if it never will."""
        if self.process.poll() is not None:
            raise WorkerEnded(f"{self.name} ended with exit code {self.process.returncode}.")
        return "event=ready" in self.log.read_text()

    def running(self, session: Session) -> int:
        """How many jobs it has begun and not booked yet."""
        return session.scalar(select(func.count()).where(Start.pid == self.pid, _not_booked())) or 0

    def terminate(self, timeout: float = 30.0) -> int | None:
        """SIGTERM; the exit code, or None if it has not ended in time."""
        if self.process.poll() is None:
            os.killpg(self.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)
        return self.process.returncode

    def kill(self) -> None:
        """SIGKILL to the whole group; harmless where it has ended."""
        if self.process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.process.wait()


class WorkerEnded(Exception):
    """A worker is gone that should be there."""


class NothingToKill(Exception):
    """No worker was seen at work."""


@contextmanager
def started(url: str, concurrency: int, folder: Path) -> Iterator[list[WorkerProcess]]:
    """Two workers, killed at the end if they still live."""
    with ExitStack() as at_the_end:
        workers = []
        for name in NAMES:
            workers.append(WorkerProcess(name, url, concurrency, folder))
            at_the_end.callback(workers[-1].kill)
        yield workers


def complaints(folder: Path) -> list[str]:
    """What the workers warned of in their logs, and what they said before they refused to work."""
    lines = [line for log in sorted(folder.glob("*.log")) for line in log.read_text().splitlines()]
    return [line for line in lines if " INFO " not in line]


def busiest(workers: Sequence[WorkerProcess], session: Session, *, at_least: int) -> WorkerProcess | None:
    """The worker that is in the middle of most jobs, if they are so many."""
    running = {worker: worker.running(session) for worker in workers}
    first = max(running, key=running.__getitem__)
    return first if running[first] >= at_least else None


def kill(victim: WorkerProcess, session: Session) -> int:
    """Write into the diary when, by the database's clock, then kill; returns how many jobs were certainly running.

    The worker is frozen while we look: where nothing runs any more it goes on, and 0 is returned.
    """
    os.killpg(victim.pid, signal.SIGSTOP)
    if running := victim.running(session):
        session.add(Kill(pid=victim.pid))
        session.commit()
        victim.kill()
    else:
        os.killpg(victim.pid, signal.SIGCONT)
    return running


def _not_booked() -> ColumnElement[bool]:
    return ~exists().where(LedgerEntry.order_id == Start.order_id)
