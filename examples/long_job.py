"""A job that lasts for 40 minutes, through three deploys and a SIGKILL, and does each of its chunks once.

python -m examples.long_job                            # in small: a chunk takes a quarter of a second
python -m examples.long_job --chunks 40 --seconds 60   # 40 minutes

It needs `magik_sa[embedded]`, or --database-url with an empty database. docs/long-jobs.md tells why it is written so.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from magik_sa import Job, Retries, Snooze, arg

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 60.0  # seconds that a worker may take to start, beside what its chunks take


class Base(DeclarativeBase):
    """The application's own tables."""


class Chunk(Base):
    """One chunk that was done. Nothing in the table forbids a second row of the same number."""

    __tablename__ = "chunks"

    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]
    total: Mapped[int]
    worker: Mapped[int]


class Recount(Job, policy="system", queue="long"):
    """Works through all chunks of a report, and knows how far it has come."""

    retries = Retries(times=5, base="1s")
    idempotent_by = "report"

    report: Mapped[str] = arg()
    chunks: Mapped[int] = arg()
    seconds: Mapped[float] = arg()
    cursor: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None:
        while self.cursor < self.chunks:
            if self.stopping:  # the worker wants to end: go on elsewhere, at once; this uses up no try
                raise Snooze("0s")
            total = count(self.cursor, self.seconds)  # the slow work comes first, with no transaction open
            session.add(Chunk(number=self.cursor, total=total, worker=os.getpid()))
            self.cursor += 1
            session.commit()  # the chunk and how far we are, together or not at all


def count(number: int, seconds: float) -> int:
    """What takes its time."""
    time.sleep(seconds)
    return number * number


# ---- the program: one such job, and what happens to its workers meanwhile


@click.command()
@click.option("--chunks", default=40, show_default=True, type=click.IntRange(10), help="chunks of the job")
@click.option("--seconds", default=0.25, show_default=True, type=click.FloatRange(0.05), help="what each takes")
@click.option("--database-url", help="a database with nothing in it [one of an embedded PostgreSQL]")
def main(chunks: int, seconds: float, database_url: str | None) -> None:
    """Run the long job through three deploys and a SIGKILL, and see whether each chunk was done once."""
    from examples.settlement.database import server

    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    with server(database_url) as place, TemporaryDirectory(prefix="long-job-") as logs:
        url = place.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
        with Program(url, chunks, seconds, Path(logs)) as program:
            program.play()
            wrong = program.wrong()
    sys.exit(1 if wrong else 0)


class Program:
    """One job, and one worker after the other."""

    def __init__(self, url: str, chunks: int, seconds: float, logs: Path) -> None:
        self.url, self.chunks, self.seconds, self.logs = url, chunks, seconds, logs
        self.workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Program:
        self.stack = ExitStack()
        engine = create_engine(self.url)
        self.stack.callback(engine.dispose)
        self.sessions = sessionmaker(engine)
        migrate = [sys.executable, "-m", "magik_sa.cli", "migrate"]
        subprocess.run(migrate, check=True, cwd=ROOT, env=self.environment(), stdout=subprocess.DEVNULL)
        Base.metadata.create_all(engine)
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def play(self) -> None:
        """A deploy, another, a kill, and a third deploy, each after a fifth of the chunks and one by the new worker."""
        with self.sessions.begin() as session:
            session.add(Recount(report="2026", chunks=self.chunks, seconds=self.seconds))
        self.start()
        for part, happens in enumerate((self.deploy, self.deploy, self.kill, self.deploy), 1):
            self.wait(lambda part=part: self.done() >= part * self.chunks // 5 and self.share())  # type: ignore[misc]
            happens()
        self.wait(lambda: self.jobs() == 0)
        self.stop(self.workers[-1])

    def start(self) -> None:
        """A worker for long jobs alone, that may take its time to stop: a chunk, and some more."""
        command = [sys.executable, "-m", "magik_sa.worker", "examples.long_job", "--queue", "long"]
        command += ["--concurrency", "1", "--shutdown-timeout", f"{self.seconds + 30}s"]
        with (self.logs / f"worker-{len(self.workers)}.log").open("wb") as log:
            worker = subprocess.Popen(command, cwd=ROOT, env=self.environment(), stderr=log, start_new_session=True)
        self.stack.callback(worker.wait)
        self.stack.callback(worker.kill)
        self.workers.append(worker)

    def deploy(self) -> None:
        """What every deploy does: a new worker, and SIGTERM to the old one."""
        old, before = self.workers[-1], self.done()
        self.start()
        code = self.stop(old)
        print(f"deploy after {before} chunks: the old worker ended with {code}", flush=True)

    def kill(self) -> None:
        """The worst that can happen to a worker: in the middle of a chunk it is gone."""
        self.workers[-1].kill()
        print(f"SIGKILL after {self.done()} chunks", flush=True)
        self.start()

    def stop(self, worker: subprocess.Popen[bytes]) -> int:
        worker.terminate()
        return worker.wait(self.seconds + PATIENCE)

    # ---- what the database says

    def done(self) -> int:
        with self.sessions() as session:
            return session.scalar(select(func.count()).select_from(Chunk)) or 0

    def share(self) -> int:
        """Chunks of the worker that is there now."""
        with self.sessions() as session:
            mine = select(func.count()).where(Chunk.worker == self.workers[-1].pid)
            return session.scalar(mine) or 0

    def jobs(self) -> int:
        with self.sessions() as session:
            return session.scalar(select(func.count()).select_from(Recount)) or 0

    def wrong(self) -> list[int]:
        """Chunks that were not done exactly once; says what was done, by whom."""
        with self.sessions() as session:
            shares = select(Chunk.worker, func.count()).group_by(Chunk.worker).order_by(func.min(Chunk.id))
            for worker, share in session.execute(shares):
                print(f"worker {worker}: {share} chunks")
            counts = select(Chunk.number, func.count()).group_by(Chunk.number)
            times = {number: n for number, n in session.execute(counts)}  # noqa: C416 - a Row is no pair
        wrong = [number for number in range(self.chunks) if times.get(number, 0) != 1]
        print(f"{len(times)} of {self.chunks} chunks done, not exactly once: {wrong or 'none'}", flush=True)
        return wrong

    def wait(self, reached: Callable[[], object]) -> None:
        """Until it is so. Raises with the worker's log where it takes too long."""
        deadline = time.monotonic() + PATIENCE + 2 * self.seconds * self.chunks
        while not reached():
            if time.monotonic() > deadline:
                raise click.ClickException((self.logs / f"worker-{len(self.workers) - 1}.log").read_text())
            time.sleep(0.02)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "MAGIK_DATABASE_URL": self.url}


if __name__ == "__main__":
    main(prog_name="python -m examples.long_job")
