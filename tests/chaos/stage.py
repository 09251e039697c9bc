"""The stage: a server of its own, workers that are started again whenever they end, some of them behind a proxy,
and producers. Everything is gone when the block ends.
"""

from __future__ import annotations

import itertools
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from sqlalchemy import create_engine, make_url

from tests.jobs.money import open_bank
from tests.tools.cluster import Cluster
from tests.tools.proxy import Proxy
from tests.tools.schema import migrate
from tests.tools.workers import WorkerProcess

from . import books, jobs, record
from .record import now

WORKERS, PRODUCERS, THREADS = 4, 2, 8
PROXIED = {2, 3}  # the workers that reach the server by the proxy
WRONG_CLOCK = 0  # the worker whose clock steps
PROGRAM = ("-m", "magik_sa.worker")
CLOCK = Path(__file__).parent / "clock"
KILLED = -signal.SIGKILL
CODES: Mapping[int, set[int]] = {  # how a worker may end that was told to
    signal.SIGKILL: {KILLED},
    signal.SIGTERM: {0, 3, -signal.SIGTERM},  # the last before Python has taken the signal over
}
REFUSED = 2  # to boot, because the server is down or takes no writes: as a supervisor would, we try again

EVENT = re.compile(r"\bevent=(\w+)")
WARNED = re.compile(r" (WARNING|ERROR|CRITICAL) ")


@dataclass(frozen=True)
class Ended:
    """A worker that ended: what was told to it, and what it said at the end."""

    pid: int
    at: float
    code: int
    told: frozenset[int]
    ready: bool
    said: str

    @property
    def expected(self) -> bool:
        """Whether it had reason to."""
        return any(self.code in CODES[told] for told in self.told) or (self.code == REFUSED and not self.ready)


@dataclass
class Slot:
    """The place of one worker, and the one that is there."""

    number: int
    worker: WorkerProcess
    told: set[int] = field(default_factory=set)

    def signal(self, number: signal.Signals) -> None:
        """SIGKILL or SIGTERM; a frozen one hears the second when it goes on."""
        self.told.add(number)
        self.worker.signal(number)


@dataclass
class Said:
    """What the logs of all workers have told."""

    events: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)

    def hear(self, log: str) -> None:
        """Add the log of one."""
        for line in log.splitlines():
            self.events.update(EVENT.findall(line))
            if WARNED.search(line) or line.startswith(("Traceback", " ", "MAGIK_")):
                self.warnings.append(line)


class Stage:
    """``with Stage() as stage:`` the server is up; `begin` starts the rest."""

    def __init__(self, seed: int, program: tuple[str, ...] = PROGRAM) -> None:
        self.seed, self.program = seed, program
        self.stack = ExitStack()
        self._numbers = itertools.count()
        self.ended: list[Ended] = []
        self.said = Said()
        self.producers: list[WorkerProcess] = []
        self.slots: list[Slot] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="magik-chaos-")))
            self.record, self.clock = self.folder / "record", self.folder / "clock"
            self.record.touch()
            self.clock.write_text("0")
            self.cluster = stack.enter_context(Cluster(settings={"track_commit_timestamp": "on"}))
            self.cluster.execute("CREATE ROLE app LOGIN")
            self.cluster.execute("CREATE DATABASE chaos OWNER app")
            self.url, self.dsn = self.cluster.url("chaos", "app"), self.cluster.dsn("chaos", "app")
            self._tables()
            self.proxy = stack.enter_context(Proxy(self.cluster.host, self.cluster.port))
            stack.callback(self._close)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stack.close()

    def _tables(self) -> None:
        migrate(self.url)
        engine = create_engine(self.url)
        open_bank(engine)
        jobs.Books.metadata.create_all(engine)
        engine.dispose()
        with self.connected() as connection:
            books.open_books(connection)

    def _close(self) -> None:
        for process in [*self.producers, *(slot.worker for slot in self.slots)]:
            process.close()

    # ---- who plays

    def begin(self) -> None:
        """Start the workers, and when they are ready the producers."""
        self.slots = [Slot(number, self._worker(number)) for number in range(WORKERS)]
        for slot in self.slots:
            slot.worker.wait_ready(60)
        self.producers = [self._producer() for _ in range(PRODUCERS)]

    def tend(self) -> None:
        """Put a new worker where one has ended."""
        for slot in self.slots:
            if slot.worker.returncode is not None:
                self._bury(slot)
                slot.worker, slot.told = self._worker(slot.number), set()

    def _bury(self, slot: Slot) -> None:
        worker, code = slot.worker, slot.worker.returncode
        assert code is not None
        worker.close()
        log = worker.stderr()
        self.said.hear(log)
        last = log.splitlines()[-1] if log else ""
        self.ended.append(Ended(worker.pid, now(), code, frozenset(slot.told), "event=ready" in log, last))

    def _worker(self, number: int) -> WorkerProcess:
        env = {record.VARIABLE: str(self.record), "CHAOS_CLOCK": str(self.clock)}
        options: dict[str, Any] = {"concurrency": THREADS, "shutdown_timeout": "1s", "poll_interval": "2s"}
        if number in PROXIED:
            url = make_url(self.url).set(port=self.proxy.port)
            options["database_url"] = url.render_as_string(hide_password=False)
        path = CLOCK if number == WRONG_CLOCK else None
        return WorkerProcess(self.url, "tests.chaos.jobs", env=env, path=path, program=self.program, **options).start()

    def _producer(self) -> WorkerProcess:
        """Each is another one, also where it takes the place of one that was killed."""
        seed = self.seed * 1_000 + next(self._numbers)
        command = [sys.executable, "-m", "tests.chaos.producer", self.url, str(seed)]
        return WorkerProcess(self.url, command=command, env={record.VARIABLE: str(self.record)}).start()

    def kill_producer(self, number: int) -> None:
        """SIGKILL, and another in its place."""
        self.producers[number].close()
        self.producers[number] = self._producer()

    # ---- the end of the play

    def hush(self) -> None:
        """Nobody adds anything more: producers end, schedules are paused."""
        for producer in self.producers:
            producer.terminate()
        with self.connected() as connection:
            connection.execute("UPDATE magik_job_schedules SET paused_at = now()")

    def dismiss(self) -> None:
        """SIGTERM to all workers; a good end is asked of all of them."""
        for slot in self.slots:
            slot.signal(signal.SIGTERM)
        for slot in self.slots:
            slot.worker.wait(20)
            self._bury(slot)
        self.slots = []

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection of the application's role, past the proxy."""
        with psycopg.connect(self.dsn, autocommit=True, application_name="chaos") as connection:
            yield connection
