"""What the machine itself can do, by pgbench: the same server, the same durability, ten clients."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import psycopg

from .figures import Figures
from .server import Server

CLIENTS: Final = 10

# Rows as small as a table allows, so that the limit is one: a job has fifteen columns and three indexes in use.
TABLE: Final = """
CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a text);
CREATE SEQUENCE s CACHE 1;
INSERT INTO t (a) SELECT 'x' FROM generate_series(1, {rows});
ANALYZE t;"""
INSERT: Final = "INSERT INTO t (a) VALUES ('x');\n"
DELETE: Final = "DELETE FROM t WHERE id = (SELECT nextval('s'));\n"


class Done(NamedTuple):
    """What pgbench has done."""

    transactions: int
    rate: float


def pgbench(server: Server, dsn: str, script: str, seconds: float, rate: float | None = None) -> Done:
    """Run a script of one transaction for so many seconds: as often as can be, or `rate` times a second."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.sql"
        file.write_text(script)
        command = [str(server.binaries / "pgbench"), "-n", "-M", "prepared", "-c", str(CLIENTS), "-j", "2"]
        command += ["-T", str(round(seconds)), "-f", str(file)] + ([f"--rate={rate}"] if rate else []) + [dsn]
        said = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=True).stdout
    return read(said)


def read(said: str) -> Done:
    """The lines that count, of what it prints."""
    done, rate = re.search(r"actually processed: (\d+)", said), re.search(r"tps = ([\d.]+)", said)
    assert done is not None, said
    assert rate is not None, said
    return Done(int(done[1]), float(rate[1]))


def insert(server: Server, seconds: float) -> Figures:
    """I10: one row and one commit, ten clients."""
    return _limit(server, INSERT, seconds, rows=1)


def delete(server: Server, seconds: float) -> Figures:
    """D10: one row by its key and one commit, ten clients."""
    return _limit(server, DELETE, seconds, rows=int(30_000 * seconds) + 50_000)


def _limit(server: Server, script: str, seconds: float, rows: int) -> Figures:
    with _database(server, rows) as dsn:
        return {"rate": pgbench(server, dsn, script, seconds).rate}


@contextmanager
def _database(server: Server, rows: int) -> Iterator[str]:
    server.execute("CREATE DATABASE limits")
    try:
        with psycopg.connect(server.uri("limits"), autocommit=True) as connection:
            connection.execute(TABLE.format(rows=rows).encode())
            connection.execute("CHECKPOINT")
        yield server.uri("limits")
    finally:
        server.execute("DROP DATABASE limits WITH (FORCE)")
