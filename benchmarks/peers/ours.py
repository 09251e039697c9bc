"""Ours: jobs are mapped classes, the worker is ``python -m magik_sa.worker``."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from benchmarks.contract import Peer
from benchmarks.jobs import KINDS
from magik_sa import bulk_enqueue

DRIVER = os.environ.get("BENCH_DRIVER", "psycopg")


def url(dsn: str) -> str:
    """As SQLAlchemy writes it."""
    return dsn.replace("postgresql:", f"postgresql+{DRIVER}:", 1)


class MagikSA(Peer):
    """The public API alone."""

    distributions = ("sqlalchemy", "psycopg")
    settings = {
        "worker": f"python -m magik_sa.worker --concurrency C, the rest default; driver {DRIVER}",
        "jobs": "db: insert and completion in one commit",
        "log": "failures only, as documented",
    }
    left = "SELECT count(*) FROM magik_jobs WHERE finished_at IS NULL AND expired_at IS NULL"

    engine: Engine

    async def setup(self, dsn: str) -> None:
        command = [sys.executable, "-m", "magik_sa.cli", "migrate"]
        subprocess.run(command, check=True, stdout=sys.stderr, env={**os.environ, "MAGIK_DATABASE_URL": url(dsn)})

    async def open(self, dsn: str) -> None:
        self.engine = create_engine(url(dsn))

    async def one(self, kind: str, seq: int) -> None:
        with Session(self.engine) as session:
            session.add(KINDS[kind](seq=seq))
            session.commit()

    async def many(self, kind: str, seqs: range, delay: float) -> None:
        ahead = timedelta(seconds=delay) if delay else None
        with Session(self.engine) as session:
            bulk_enqueue(session, KINDS[kind], ({"seq": seq} for seq in seqs), delay=ahead)
            session.commit()

    async def close(self) -> None:
        self.engine.dispose()

    def work(self, dsn: str, concurrency: int, record: str) -> None:
        env = {**os.environ, "MAGIK_DATABASE_URL": url(dsn), "BENCH_RECORD": record, "BENCH_DSN": dsn}
        command = [sys.executable, "-m", "magik_sa.worker", "benchmarks.jobs", "--concurrency", str(concurrency)]
        os.execve(sys.executable, command, env)  # it is the same process


PEER = MagikSA()
