"""The servers that everything is measured on: durable, with their data on a disk, made for one run."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from tests.tools.cluster import Cluster, debian, embedded

# All that differs from PostgreSQL's defaults, for everybody alike. The first three are the defaults, so that nobody has
# to guess; statements are counted only where a scenario asks for it.
SETTINGS: Final[dict[str, str | int]] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_connections": 200,
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "autovacuum_naptime": "10s",
    "pg_stat_statements.track": "none",
}
WIDE: Final[dict[str, str | int]] = {"max_connections": 700}  # for hundreds of threads


class Missing(RuntimeError):
    """There is no such PostgreSQL here."""


class Servers:
    """Started when they are first asked for, gone at the end: ``with Servers() as servers: servers.of(18)``."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: dict[tuple[int, bool], Server] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stack.close()

    def of(self, major: int = 18, *, wide: bool = False) -> Server:
        """The server of that major version: 18 is the embedded one, others are Debian's. Raises `Missing`."""
        key = (major, wide)
        if key not in self._running:
            binaries = embedded() if major == 18 else debian(major)
            if binaries is None:
                raise Missing(f"PostgreSQL {major} is not installed")
            self._running[key] = self._stack.enter_context(Server(binaries, WIDE if wide else {}))
        return self._running[key]


class Server(Cluster):
    """A cluster of the tests' kind that forgets nothing, spoken to over its socket."""

    def __init__(self, binaries: Path, more: dict[str, str | int]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="magik-benchmarks-", dir="/var/tmp"))
        folder.chmod(0o755)
        super().__init__(binaries, {**SETTINGS, **more}, folder)

    def uri(self, database: str) -> str:
        """What every contender's process is given."""
        return f"postgresql://{self.user}@/{database}?host={self.folder}&port={self.port}"

    def cpu(self) -> float:
        """CPU seconds of the whole server so far, with those sessions that have ended."""
        assert self.process is not None
        postmaster = psutil.Process(self.process.pid)
        times = postmaster.cpu_times()
        total = times.user + times.system + times.children_user + times.children_system
        for child in postmaster.children():
            try:
                own = child.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += own.user + own.system
        return float(total)
