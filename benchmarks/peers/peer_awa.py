"""awa: a Rust core with a Python AsyncClient, on its queue-storage engine (the default)."""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import awa

from benchmarks.contract import INSERT, SLEEP, Peer, Recorder
from benchmarks.peers.own_pool import own_pool


@dataclass
class Noop:
    seq: int


@dataclass
class Db:
    seq: int


@dataclass
class Sleep:
    seq: int


KINDS: dict[str, type[Noop | Db | Sleep]] = {"noop": Noop, "db": Db, "sleep": Sleep}


def url(dsn: str) -> str:
    """Its driver wants a host before the folder of the socket."""
    return dsn.replace("postgres@/", "postgres@localhost/")


class Awa(Peer):
    """Jobs are dataclasses."""

    distributions = ("awa-pg",)
    settings = {
        "worker": "AsyncClient.start([('default', C)]), async handlers, rest default",
        "bulk": "enqueue_many_copy (COPY into queue storage); scheduled ones by insert_many_copy",
        "db": "its own psycopg AsyncConnectionPool(C), autocommit",
    }
    # Its view awa.jobs takes many seconds over thousands of rows, so the engine's own tables are counted.
    left = (
        "SELECT (SELECT count(*) FROM awa.deferred_jobs) + (SELECT count(*) FROM awa.ready_entries)"
        " - (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)"
        " - (SELECT count(*) FROM awa.done_entries)"
    )
    left_few = "SELECT count(*) FROM awa.jobs WHERE state::text NOT IN ('completed', 'failed', 'cancelled')"

    async def setup(self, dsn: str) -> None:
        client = awa.AsyncClient(url(dsn))
        await client.migrate()

        @client.task(Noop, queue="default")
        async def noop(_: Any) -> None: ...

        await client.start([("default", 1)])  # a fresh schema turns to the engine when its first worker starts
        await asyncio.sleep(1)
        await client.shutdown()
        await client.close()

    async def open(self, dsn: str) -> None:
        self.client = awa.AsyncClient(url(dsn))

    async def one(self, kind: str, seq: int) -> None:
        await self.client.insert(KINDS[kind](seq=seq), queue="default")

    async def many(self, kind: str, seqs: range, delay: float) -> None:
        jobs = [KINDS[kind](seq=seq) for seq in seqs]
        if delay:
            run_at = datetime.now(UTC) + timedelta(seconds=delay)
            await self.client.insert_many_copy(jobs, queue="default", run_at=run_at)
        else:
            await self.client.enqueue_many_copy(jobs, queue="default")

    async def close(self) -> None:
        await self.client.close()

    def work(self, dsn: str, concurrency: int, record: str) -> None:
        asyncio.run(serve(dsn, concurrency, Recorder(record)))


async def serve(dsn: str, concurrency: int, record: Recorder) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = awa.AsyncClient(url(dsn))
    own = own_pool(dsn, concurrency)

    @client.task(Noop, queue="default")
    async def noop(job: Any) -> None:
        record(job.args.seq)

    @client.task(Db, queue="default")
    async def db(job: Any) -> None:
        record(job.args.seq)
        async with own.connection() as connection:
            await connection.execute(INSERT, (job.args.seq,))

    @client.task(Sleep, queue="default")
    async def sleep(job: Any) -> None:
        record(job.args.seq)
        await asyncio.sleep(SLEEP)

    async with own:
        await client.start([("default", concurrency)])
        await stop.wait()
        await client.shutdown()


PEER = Awa()
