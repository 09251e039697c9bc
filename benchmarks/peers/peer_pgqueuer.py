"""pgqueuer: asyncpg driver and uvloop, as ``pgq run`` and its own benchmark use."""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from benchmarks.contract import INSERT_ASYNCPG, SLEEP, Peer, Recorder

T = TypeVar("T")
BATCH = int(os.environ.get("PGQUEUER_BATCH", "10"))  # its default; 100 is its documented knob for short jobs


class Pgqueuer(Peer):
    """One connection for the queue, a pool for the jobs' own work."""

    distributions = ("pgqueuer", "asyncpg", "uvloop")
    settings = {
        "driver": "AsyncpgDriver (one connection), uvloop",
        "worker": f"run(batch_size={BATCH}), rest default",
        "schema": "install() and the documented `pgq autovac` settings; durability=durable (default)",
        "db": "its own asyncpg pool(C): not one commit with the acknowledgement",
    }
    left = "SELECT count(*) FROM pgqueuer"  # finished rows move to pgqueuer_log

    def run(self, todo: Coroutine[Any, Any, T]) -> T:
        return uvloop.run(todo)  # type: ignore[no-any-return,unused-ignore]

    async def setup(self, dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.optimize_autovacuum()
        await connection.close()

    async def open(self, dsn: str) -> None:
        self.connection = await asyncpg.connect(dsn)
        self.queries = Queries(AsyncpgDriver(self.connection))

    async def one(self, kind: str, seq: int) -> None:
        await self.queries.enqueue(kind, b"%d" % seq)

    async def many(self, kind: str, seqs: range, delay: float) -> None:
        n = len(seqs)
        after = [timedelta(seconds=delay)] * n if delay else None
        await self.queries.enqueue([kind] * n, [b"%d" % seq for seq in seqs], [0] * n, after)

    async def close(self) -> None:
        await self.connection.close()

    def work(self, dsn: str, concurrency: int, record: str) -> None:
        self.run(serve(dsn, concurrency, Recorder(record)))


async def serve(dsn: str, concurrency: int, record: Recorder) -> None:
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=concurrency)
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queue.shutdown.set)

    @queue.entrypoint("noop")
    async def noop(job: Any) -> None:
        record(int(job.payload))

    @queue.entrypoint("db")
    async def db(job: Any) -> None:
        seq = int(job.payload)
        record(seq)
        await pool.execute(INSERT_ASYNCPG, seq)

    @queue.entrypoint("sleep")
    async def sleep(job: Any) -> None:
        record(int(job.payload))
        await asyncio.sleep(SLEEP)

    await queue.run(batch_size=BATCH, max_concurrent_tasks=None)


PEER = Pgqueuer()
