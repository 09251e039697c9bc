"""dramatiq-postgres: actors are plain functions, run by threads, as ours are."""

# pyright: reportMissingImports=false

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import dramatiq
import psycopg
import psycopg_pool
from dramatiq_postgres import PostgresBroker
from dramatiq_postgres.schema import init

from benchmarks.contract import INSERT, SLEEP, Peer, Recorder


def make(dsn: str, record: Any = None, pool: Any = None) -> tuple[Any, dict[str, Any]]:
    """The broker, and the actors by their kind."""
    broker = PostgresBroker(url=dsn)
    dramatiq.set_broker(broker)

    @dramatiq.actor(actor_name="noop")
    def noop(seq: int) -> None:
        record(seq)

    @dramatiq.actor(actor_name="db")
    def db(seq: int) -> None:
        record(seq)
        with pool.connection() as connection:
            connection.execute(INSERT, (seq,))

    @dramatiq.actor(actor_name="sleep")
    def sleep(seq: int) -> None:
        record(seq)
        time.sleep(SLEEP)

    return broker, {"noop": noop, "db": db, "sleep": sleep}


class DramatiqPostgres(Peer):
    """The broker's tables are the queue."""

    distributions = ("dramatiq-postgres", "dramatiq", "psycopg")
    settings = {
        "worker": "dramatiq.Worker(broker, worker_threads=C), sync actors, rest default (results on)",
        "db": "its own psycopg ConnectionPool(C), autocommit",
        "bulk": "none in its API: one by one",
    }
    left = "SELECT count(*) FROM dramatiq.queue WHERE state::text NOT IN ('rejected', 'done')"
    has_bulk = False

    async def setup(self, dsn: str) -> None:
        with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
            init(cursor)

    async def open(self, dsn: str) -> None:
        self.broker, self.actors = make(dsn)

    async def one(self, kind: str, seq: int) -> None:
        self.actors[kind].send(seq)

    async def many(self, kind: str, seqs: range, delay: float) -> None:
        for seq in seqs:
            self.actors[kind].send_with_options(args=(seq,), delay=int(delay * 1_000) or None)

    async def close(self) -> None:
        self.broker.close()

    def work(self, dsn: str, concurrency: int, record: str) -> None:
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        with psycopg_pool.ConnectionPool(
            dsn, min_size=1, max_size=concurrency, kwargs={"autocommit": True}, open=True
        ) as own:
            broker, _ = make(dsn, Recorder(record), own)
            worker = dramatiq.Worker(broker, worker_threads=concurrency)
            worker.start()
            stop.wait()
            worker.stop()
            broker.close()


PEER = DramatiqPostgres()
