"""Where a case is measured: a fresh database with the contender's tables, and the file in which its jobs record."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil
import psycopg

from .contender import Contender, Processes
from .contract import BATCH
from .figures import Unsound
from .record import Record
from .server import Server
from .tables import MAKE

_numbers: Final = itertools.count(1)
PATIENCE: Final = 300.0  # seconds for something to be done


class Ground:
    """``with Ground(server, contender) as ground: ground.load(1_000); ground.worker()``"""

    def __init__(self, server: Server, contender: Contender) -> None:
        self.server, self.contender = server, contender
        self.database = f"case_{next(_numbers)}"
        self.dsn = server.uri(self.database)
        self.folder = Path(tempfile.mkdtemp(prefix="magik-case-"))
        self.record = Record(self.folder / "record")
        self.processes = Processes(self.folder / "log")

    def __enter__(self) -> Self:
        self.server.execute(f"CREATE DATABASE {self.database}")
        try:
            self.info = self.contender.call("info")
            self.contender.call("setup", dsn=self.dsn)
            self.connection: psycopg.Connection[Any] = psycopg.connect(self.dsn, autocommit=True)
            self.connection.execute(MAKE.encode())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.processes.stop()
        self.server.execute(f"DROP DATABASE {self.database} WITH (FORCE)")
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- what a contender does

    def load(self, n: int, kind: str = "noop", base: int = 0, delay: float = 0.0, batch: int = BATCH) -> None:
        """Enqueue so many, `batch` in a commit."""
        self.contender.call("load", dsn=self.dsn, n=n, kind=kind, base=base, delay=delay, batch=batch)

    def count_statements(self) -> None:
        """In the sessions that begin from now on."""
        self.connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        self.connection.execute(f"ALTER DATABASE {self.database} SET pg_stat_statements.track = 'top'".encode())

    def settle(self) -> None:
        """A queue that is full in real life has statistics, and no checkpoint that is due."""
        self.connection.execute("VACUUM (ANALYZE)")
        self.connection.execute("CHECKPOINT")

    def enqueue(self, mode: str, seconds: float) -> dict[str, Any]:
        """As many as can be in so many seconds."""
        return self.contender.call("enqueue", dsn=self.dsn, mode=mode, seconds=seconds)

    def produce(self, rate: float, seconds: float, batch: int = 1) -> dict[str, Any]:
        """A steady load; `commits` has what was noted of it."""
        options = {"rate": rate, "seconds": seconds, "batch": batch, "log": self.folder / "commits"}
        return self.contender.call("produce", dsn=self.dsn, **options)

    def worker(self, concurrency: int = 10, sleep: float = 5.0) -> psutil.Popen:
        """Start one; it is not ready yet."""
        options = {"dsn": self.dsn, "record": self.record.path, "concurrency": concurrency}
        return self.processes.start(self.contender, "work", {"BENCH_SLEEP": str(sleep)}, **options)

    def warm_worker(self, concurrency: int = 10, sleep: float = 5.0) -> psutil.Popen:
        """Start one, and return when it has run a job and had a moment to rest."""
        before, process = self.record.count(), self.worker(concurrency, sleep)
        self.load(1, base=-10)
        self.wait_started(before + 1)
        self.wait_left(0)
        psutil.wait_procs([process], timeout=1.5)
        return process

    # ---- what is seen of it

    def left(self, few: bool = False) -> int:
        """Jobs that have yet to end."""
        return int(self.one(self.info["left_few" if few else "left"]))

    def one(self, query: str) -> Any:
        """The first value of the first row."""
        row = self.connection.execute(query.encode()).fetchone()
        return None if row is None else row[0]

    def wait_started(self, n: int, timeout: float = PATIENCE) -> None:
        """Until so many starts are recorded. Raises `Unsound`."""
        self._wait(lambda: self.record.count() >= n, timeout, f"{n} starts", 0.01)

    def wait_left(self, n: int, timeout: float = 60.0) -> None:
        """Until no more than so many have yet to end. Raises `Unsound`."""
        self._wait(lambda: self.left() <= n, timeout, f"{n} left", 0.01)

    def _wait(self, condition: Callable[[], bool], timeout: float, what: str, every: float) -> None:
        """At a steady pace: the end of a drain is known to within `every` seconds."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                state = f"started {self.record.count()}, left {self.left()}; {self._said()}"
                raise Unsound(f"not within {timeout:g} s: {what}; {state}")
            time.sleep(every)

    def _said(self) -> str:
        log = self.processes.log
        return log.read_text(errors="replace")[-500:] if log.exists() else ""

    def expect_once(self, jobs: int, left: int = 0) -> None:
        """Raise `Unsound` unless as many different jobs have started, each once, and no more are left."""
        if repeated := self.record.repeated():
            raise Unsound(f"{len(repeated)} jobs started more than once")
        if (started := self.record.count()) != jobs:
            raise Unsound(f"{started} jobs started, of {jobs}")
        if (there := self.left()) != left:
            raise Unsound(f"{there} jobs are left, not {left}")
