"""The body of a job without a queue: ten threads, a Session and a commit for each row.

``python -m benchmarks.bare --dsn … --body add --n 5000 --record FILE`` prints jobs, seconds and rate as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from benchmarks import tables
from benchmarks.contract import Recorder
from benchmarks.peers.ours import url

Body = Callable[[Session, int], None]
BODIES: Final[dict[str, Body]] = {"add": tables.add, "db": tables.execute}


def loop(engine: Engine, body: Body, seqs: Iterator[int], n: int, record: Recorder) -> None:
    """One thread's share of the numbers below `n`; `next` of a count is safe among threads."""
    while (seq := next(seqs)) < n:
        with Session(engine) as session:
            record(seq)
            body(session, seq)
            session.commit()


def warm(engine: Engine, threads: int) -> None:
    """Have all connections open, as a worker has them before its first job."""
    for connection in [engine.connect() for _ in range(threads)]:
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bare")
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--body", choices=BODIES, required=True)
    parser.add_argument("--n", type=int, required=True)
    parser.add_argument("--threads", type=int, default=10)
    parser.add_argument("--record", required=True)
    told = parser.parse_args()
    engine = create_engine(url(told.dsn), pool_size=told.threads)
    warm(engine, told.threads)
    given = (engine, BODIES[told.body], itertools.count(), told.n, Recorder(told.record))
    threads = [threading.Thread(target=loop, args=given) for _ in range(told.threads)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - begun
    engine.dispose()
    print(json.dumps({"jobs": told.n, "seconds": spent, "rate": told.n / spent}), flush=True)


if __name__ == "__main__":
    main()
