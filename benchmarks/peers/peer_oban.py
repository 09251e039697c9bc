"""oban: an embedded Oban with one queue, jobs are functions."""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import signal
from typing import Any

from oban import Oban, job
from oban.schema import install

from benchmarks.contract import INSERT, SLEEP, Peer, Recorder
from benchmarks.peers.own_pool import own_pool

_here: dict[str, Any] = {}  # what a worker's jobs use, which have to stand in a module


@job(queue="default")
async def noop(seq: int) -> None:
    _here["record"](seq)


@job(queue="default")
async def db(seq: int) -> None:
    _here["record"](seq)
    async with _here["pool"].connection() as connection:
        await connection.execute(INSERT, (seq,))


@job(queue="default")
async def sleep(seq: int) -> None:
    _here["record"](seq)
    await asyncio.sleep(SLEEP)


KINDS: dict[str, Any] = {"noop": noop, "db": db, "sleep": sleep}


class ObanPeer(Peer):
    """Client and worker are the same class."""

    distributions = ("oban", "psycopg")
    settings = {
        "jobs": "@job async functions",
        "worker": "Oban(pool, queues={'default': C}), rest default (pool 1..10, completed kept 1 day)",
        "db": "its own psycopg AsyncConnectionPool(C), autocommit",
    }
    left = "SELECT count(*) FROM oban_jobs WHERE state::text NOT IN ('completed', 'cancelled', 'discarded')"

    async def setup(self, dsn: str) -> None:
        pool = await Oban.create_pool(dsn)
        await install(pool)
        await pool.close()

    async def open(self, dsn: str) -> None:
        self.pool = await Oban.create_pool(dsn)
        self.oban = Oban(pool=self.pool)  # no queues: a client
        await self.oban.start()

    async def one(self, kind: str, seq: int) -> None:
        await self.oban.enqueue(KINDS[kind].new(seq=seq))

    async def many(self, kind: str, seqs: range, delay: float) -> None:
        jobs = [KINDS[kind].new(seq=seq) for seq in seqs]
        for each in jobs if delay else []:
            each.update({"scheduled_in": delay})
        await self.oban.enqueue_many(jobs)

    async def close(self) -> None:
        await self.oban.stop()
        await self.pool.close()

    def work(self, dsn: str, concurrency: int, record: str) -> None:
        _here["record"] = Recorder(record)
        asyncio.run(serve(dsn, concurrency))


async def serve(dsn: str, concurrency: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    pool = await Oban.create_pool(dsn)
    own = own_pool(dsn, concurrency)
    async with own:
        _here["pool"] = own
        async with Oban(pool=pool, queues={"default": concurrency}):
            await stop.wait()
    await pool.close()


PEER = ObanPeer()
