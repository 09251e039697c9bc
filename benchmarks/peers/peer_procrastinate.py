"""procrastinate: async tasks on a psycopg connector."""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
from typing import Any

import procrastinate

from benchmarks.contract import INSERT, SLEEP, Peer, Recorder
from benchmarks.peers.own_pool import own_pool


def make(dsn: str, concurrency: int = 2, record: Any = None, pool: Any = None) -> tuple[Any, dict[str, Any]]:
    """The application, and its tasks by their kind."""
    size = concurrency + 2
    connector = procrastinate.PsycopgConnector(conninfo=dsn, min_size=min(4, size), max_size=size)
    app = procrastinate.App(connector=connector)

    @app.task(name="noop")
    async def noop(seq: int) -> None:
        record(seq)

    @app.task(name="db")
    async def db(seq: int) -> None:
        record(seq)
        async with pool.connection() as connection:
            await connection.execute(INSERT, (seq,))

    @app.task(name="sleep")
    async def sleep(seq: int) -> None:
        record(seq)
        await asyncio.sleep(SLEEP)

    return app, {"noop": noop, "db": db, "sleep": sleep}


class Procrastinate(Peer):
    """Tasks are functions of an App."""

    distributions = ("procrastinate", "psycopg")
    settings = {
        "tasks": "async def",
        "worker": "run_worker_async(concurrency=C), rest default (LISTEN on, finished jobs kept)",
        "pool": "PsycopgConnector max_size=C+2",
        "db": "its own psycopg AsyncConnectionPool(C), autocommit",
    }
    left = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"

    async def setup(self, dsn: str) -> None:
        app, _ = make(dsn)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def open(self, dsn: str) -> None:
        self.app, self.tasks = make(dsn)
        await self.app.open_async()

    async def one(self, kind: str, seq: int) -> None:
        await self.tasks[kind].defer_async(seq=seq)

    async def many(self, kind: str, seqs: range, delay: float) -> None:
        task = self.tasks[kind].configure(schedule_in={"seconds": delay}) if delay else self.tasks[kind]
        await task.batch_defer_async(*[{"seq": seq} for seq in seqs])

    async def close(self) -> None:
        await self.app.close_async()

    def work(self, dsn: str, concurrency: int, record: str) -> None:
        asyncio.run(serve(dsn, concurrency, Recorder(record)))


async def serve(dsn: str, concurrency: int, record: Recorder) -> None:
    own = own_pool(dsn, concurrency)
    async with own:
        app, _ = make(dsn, concurrency, record, own)
        async with app.open_async():
            await app.run_worker_async(concurrency=concurrency)


PEER = Procrastinate()
