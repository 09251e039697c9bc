"""chancy: an async queue with eager polling, its documented switch for low latency."""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from chancy import Chancy, Job, Queue, Worker

from benchmarks.contract import INSERT, SLEEP, Peer, Recorder
from benchmarks.peers.own_pool import own_pool

LOG = logging.getLogger("chancy")  # silent below WARNING; its own default prints a line for each job
CONCURRENCY = 10  # stands in the database
_here: dict[str, Any] = {}  # what a worker's jobs use, which are found by their import path


async def noop(*, seq: int) -> None:
    _here["record"](seq)


async def db(*, seq: int) -> None:
    _here["record"](seq)
    async with _here["pool"].connection() as connection:
        await connection.execute(INSERT, (seq,))


async def sleep(*, seq: int) -> None:
    _here["record"](seq)
    await asyncio.sleep(SLEEP)


class ChancyPeer(Peer):
    """Jobs are functions by their path."""

    distributions = ("chancy", "psycopg")
    settings = {
        "queue": "Queue(concurrency=C, executor=Async, eager_polling=True), polling_interval 5 s (default)",
        "worker": "Worker(chancy), rest default (pool 1..10, default plugins, updates flushed each 1 s)",
        "db": "its own psycopg AsyncConnectionPool(C), autocommit",
    }
    left = "SELECT count(*) FROM chancy_jobs WHERE state NOT IN ('succeeded', 'failed', 'expired')"

    async def setup(self, dsn: str) -> None:
        async with Chancy(dsn, log=LOG) as chancy:
            await chancy.migrate()
            eager = {"executor": Chancy.Executor.Async, "eager_polling": True}
            await chancy.declare(Queue("default", concurrency=CONCURRENCY, **eager), upsert=True)

    async def open(self, dsn: str) -> None:
        self.chancy = Chancy(dsn, log=LOG)
        await self.chancy.pool.open()

    def _job(self, kind: str, seq: int) -> Any:
        return Job(func=f"{__name__}.{kind}", kwargs={"seq": seq}, queue="default")

    async def one(self, kind: str, seq: int) -> None:
        await self.chancy.push(self._job(kind, seq))

    async def many(self, kind: str, seqs: range, delay: float) -> None:
        jobs = [self._job(kind, seq) for seq in seqs]
        if delay:
            jobs = [job.with_scheduled_at(datetime.now(UTC) + timedelta(seconds=delay)) for job in jobs]
        async for _ in self.chancy.push_many(jobs, batch_size=len(jobs)):
            pass

    async def close(self) -> None:
        await self.chancy.pool.close()

    def work(self, dsn: str, concurrency: int, record: str) -> None:
        _here["record"] = Recorder(record)
        asyncio.run(serve(dsn, concurrency))


async def serve(dsn: str, concurrency: int) -> None:
    own = own_pool(dsn, concurrency)
    async with own:
        _here["pool"] = own
        async with Chancy(dsn, log=LOG) as chancy, Worker(chancy) as worker:
            await worker.wait_for_shutdown()


PEER = ChancyPeer()
