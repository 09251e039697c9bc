"""What a contender's process does: ``python -m benchmarks.contract NAME COMMAND --dsn …``.

| command | does | prints, as JSON on its last line |
|---|---|---|
| ``info`` | nothing to the database | versions, settings, how to ask what is left |
| ``setup`` | makes the contender's tables in an empty database, by its own installer | |
| ``load`` | enqueues jobs `base` to `base + n - 1` by the fastest documented way | jobs, seconds |
| ``enqueue`` | enqueues no-op jobs as fast as it can: one commit each, or 1,000 a call | jobs, seconds, rate |
| ``produce`` | enqueues at a steady rate; `log` has ``seq before after`` of each commit | jobs, seconds, rate |
| ``work`` | one worker process, until SIGTERM | |

A peer is a module of `peers` with a `PEER`; it uses what its package documents, and names in `settings` whatever
differs from its defaults. It has three jobs, each with one integer, `seq`: ``noop`` returns, ``db`` inserts one row
into ``app_rows`` in the way natural to it, ``sleep`` lasts. The first thing that each does is to record its start.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.metadata
import json
import os
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

T = TypeVar("T")

BATCH: Final = 1_000  # jobs in one call of `many`, unless it is said
SLEEP: Final = float(os.environ.get("BENCH_SLEEP", "5"))  # seconds that a sleeping job lasts
INSERT: Final = "INSERT INTO app_rows (seq, note) VALUES (%s, 'done')"  # as psycopg spells it
INSERT_ASYNCPG: Final = "INSERT INTO app_rows (seq, note) VALUES ($1, 'done')"


class Recorder:
    """Appends ``seq start_ns since_ns`` for each started job, in one write(2) of about 2 µs.

    The kernel has the line when the call returns, so a killed worker loses none; O_APPEND lets processes share the
    file. The first line of a process, ``# pid cpu_ns``, tells what its start has cost.
    """

    def __init__(self, path: str) -> None:
        self._path, self._file, self._opening = path, -1, threading.Lock()

    def __call__(self, seq: int, since: int = 0) -> None:
        now = time.time_ns()
        if self._file < 0:
            self._open()
        os.write(self._file, b"%d %d %d\n" % (seq, now, since))

    def _open(self) -> None:
        """At the first job: in a process that was forked meanwhile too, and once for all its threads."""
        with self._opening:
            if self._file < 0:
                file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
                os.write(file, b"# %d %d\n" % (os.getpid(), time.process_time_ns()))
                self._file = file


class Peer:
    """Override what the peer has. Its methods are async for those that are; others are simply called inside."""

    distributions: ClassVar[Sequence[str]] = ()
    settings: Mapping[str, str] = {}
    left: ClassVar[str] = ""  # SQL: how many jobs have yet to end; asked often, after the acknowledgements
    left_few: ClassVar[str] = ""  # the same for a handful, where another query is better
    has_bulk: ClassVar[bool] = True

    async def setup(self, dsn: str) -> None:
        """Make the tables."""
        raise NotImplementedError

    async def open(self, dsn: str) -> None:
        """Begin to enqueue."""
        raise NotImplementedError

    async def one(self, kind: str, seq: int) -> None:
        """Enqueue one job, and commit."""
        raise NotImplementedError

    async def many(self, kind: str, seqs: range, delay: float) -> None:
        """Enqueue these in one call, `delay` seconds ahead where that is not 0."""
        raise NotImplementedError

    async def close(self) -> None:
        """End to enqueue."""

    def work(self, dsn: str, concurrency: int, record: str) -> None:
        """One worker process, until SIGTERM; its jobs write to the file `record`."""
        raise NotImplementedError

    def run(self, todo: Coroutine[Any, Any, T]) -> T:
        """On the event loop that the peer is meant for."""
        return asyncio.run(todo)

    def info(self) -> dict[str, Any]:
        """What the report says of it, and what the runner has to know."""
        return {
            "versions": {name: importlib.metadata.version(name) for name in self.distributions},
            "settings": dict(self.settings),
            "left": self.left,
            "left_few": self.left_few or self.left,
            "has_bulk": self.has_bulk,
        }


async def setup(peer: Peer, told: argparse.Namespace) -> dict[str, Any]:
    await peer.setup(told.dsn)
    return {}


async def load(peer: Peer, told: argparse.Namespace) -> dict[str, Any]:
    await peer.open(told.dsn)
    begun = time.perf_counter()
    for at in range(told.base, told.base + told.n, told.batch):
        await peer.many(told.kind, range(at, min(at + told.batch, told.base + told.n)), told.delay)
    spent = time.perf_counter() - begun
    await peer.close()
    return {"jobs": told.n, "seconds": spent}


async def enqueue(peer: Peer, told: argparse.Namespace) -> dict[str, Any]:
    await peer.open(told.dsn)
    await peer.one("noop", -1)  # connects, prepares
    jobs, begun, spent = 0, time.perf_counter(), 0.0
    while spent < told.seconds:
        if told.mode == "single":
            await peer.one("noop", jobs)
        else:
            await peer.many("noop", range(jobs, jobs + told.batch), 0)
        jobs += 1 if told.mode == "single" else told.batch
        spent = time.perf_counter() - begun
    await peer.close()
    return {"jobs": jobs, "seconds": spent, "rate": jobs / spent}


async def produce(peer: Peer, told: argparse.Namespace) -> dict[str, Any]:
    """`batch` jobs a call, on a timetable: a slow call is caught up with, unless the contender cannot keep the rate."""
    await peer.open(told.dsn)
    await peer.one("noop", -2)
    jobs, total, begun = 0, int(told.rate * told.seconds), time.perf_counter()
    with Path(told.log).open("w", buffering=1 << 20) as log:
        while jobs < total and time.perf_counter() - begun < told.seconds * 1.5:
            if (wait := begun + jobs / told.rate - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            before = time.time_ns()
            if told.batch == 1:
                await peer.one("noop", jobs)
            else:
                await peer.many("noop", range(jobs, jobs + told.batch), 0)
            after = time.time_ns()
            log.writelines(f"{seq} {before} {after}\n" for seq in range(jobs, jobs + told.batch))
            jobs += told.batch
    spent = time.perf_counter() - begun
    await peer.close()
    return {"jobs": jobs, "seconds": spent, "rate": jobs / spent}


COMMANDS: Final = {"setup": setup, "load": load, "enqueue": enqueue, "produce": produce}


def parser() -> argparse.ArgumentParser:
    """What the runner says to a contender's process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contract")
    parser.add_argument("name")
    parser.add_argument("command", choices=["info", "work", *COMMANDS])
    parser.add_argument("--dsn")
    parser.add_argument("--n", type=int, default=0)
    parser.add_argument("--base", type=int, default=0)
    parser.add_argument("--kind", default="noop")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--mode", choices=("single", "bulk"), default="single")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--log")
    parser.add_argument("--record")
    parser.add_argument("--concurrency", type=int, default=10)
    return parser


def main() -> None:
    told = parser().parse_args()
    peer: Peer = importlib.import_module(f"benchmarks.peers.{told.name}").PEER
    if told.command == "work":
        peer.work(told.dsn, told.concurrency, told.record)
        return
    answer = peer.info() if told.command == "info" else peer.run(COMMANDS[told.command](peer, told))
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
