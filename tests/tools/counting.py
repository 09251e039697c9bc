"""How many sessions each application has at once, as its processes see it: for the server one goes a while later."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

LOOKING = "looking"  # the application whose sessions do not count
SESSIONS = f"""
SELECT application_name, client_port FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND application_name <> '{LOOKING}'"""
ESTABLISHED = "01"


@contextmanager
def counting(dsn: str, worker: str) -> Iterator[Counter[str]]:
    """The most that each application has had while the block runs, and under its own name all of this worker's."""
    most, end = Counter[str](), threading.Event()

    def count() -> None:
        with psycopg.connect(dsn, autocommit=True, application_name=LOOKING) as connection:
            while not end.wait(0.02):
                names = held(connection)
                names += [worker for name in names if name.startswith(f"{worker} ")]
                most.update(Counter(names) - most)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield most
    finally:
        end.set()
        thread.join()


def held(connection: psycopg.Connection[Any]) -> list[str]:
    """The applications of sessions that were all there at one moment: known to the server, then not closed yet here."""
    found = connection.execute(SESSIONS.encode()).fetchall()
    here = established(connection.info.port)
    return [name for name, port in found if port in here]


def established(server: int) -> set[int]:
    """The ports on this side of the connections to that port."""
    rows = (line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    ends = ((local, remote) for local, remote, state in rows if state == ESTABLISHED)
    return {_port(local) for local, remote in ends if _port(remote) == server}


def _port(address: str) -> int:
    return int(address.partition(":")[2], 16)
