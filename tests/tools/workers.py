"""The worker as a process of its own: started, watched, signalled and always cleaned up."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy.engine import make_url

from tests.controls import VARIABLE, missing

from .asking import Process, start
from .keeper import keeper
from .waiting import patience, until

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ("-m", "magik_sa.worker")
READY = re.compile(r"\bevent\"?\s*[=:]\s*\"?ready\b")
_numbers = itertools.count(1)


class WorkerDied(AssertionError):
    """The worker's process ended while something was expected of it; the text is its stderr."""


def dsn_of(url: str) -> str:
    """A SQLAlchemy URL in the form that libpq reads."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


class WorkerProcess:
    """``python -m magik_sa.worker modules… options…`` in a process group of its own.

    ``with WorkerProcess(database, "tests.jobs.marker", concurrency=2) as worker: worker.wait_ready()``

    Keywords become options (``shutdown_timeout="2s"`` is ``--shutdown-timeout 2s``; True a bare flag; a list repeats
    the option). `path` is put on PYTHONPATH, for modules that a test writes; `env` is added to the environment, from
    which every MAGIK_* and PG* of ours is taken out first. The name of its sessions is unique unless `app_name` is
    given. `program` replaces ``-m magik_sa.worker``, `command` the whole line; `fresh` has an interpreter started anew,
    as `asking` says. Leaving the block kills the group.
    """

    def __init__(
        self,
        database: str,
        *modules: str,
        app_name: str | None = None,
        env: Mapping[str, str] | None = None,
        path: Path | None = None,
        cwd: Path = ROOT,
        program: Iterable[str] = PROGRAM,
        command: list[str] | None = None,
        fresh: bool = False,
        **options: object,
    ) -> None:
        self.database, self.cwd, self.fresh = database, cwd, fresh
        self.app_name = app_name or f"magik_{os.getpid()}_{next(_numbers)}"
        options["app_name"] = self.app_name
        if missing() and tuple(program) == PROGRAM:
            program = ("-m", "tests.controls")
        self.command = command or [sys.executable, *program, *modules, *spelt(options)]
        self.env = environment(database, path, env or {})
        self._process: Process | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    # ---- life -----------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the process; it is not ready yet."""
        self._folder = tempfile.TemporaryDirectory(prefix="magik-worker-")
        keeper.note("folder", Path(self._folder.name))
        with self._file("stdout").open("wb") as out, self._file("stderr").open("wb") as err:
            self._process = start(
                self.command,
                env=self.env,
                cwd=self.cwd,
                stdout=out.fileno(),
                stderr=err.fileno(),
                fresh=self.fresh,
            )
        keeper.note("group", self.pid)
        return self

    def wait_ready(self, timeout: float = 20.0) -> Self:
        """Return when the worker listens, by its log; raise `WorkerDied` when it ended instead."""

        def ready() -> bool:
            self.expect_alive()
            return bool(READY.search(self.stderr()))

        until(ready, timeout, every=0.02, what=f"worker ready; its stderr:\n{self.stderr()}")
        return self

    def wait(self, timeout: float = 30.0) -> int:
        """Return the exit code once the process has ended by itself."""
        timeout = patience(timeout)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker still runs after {timeout:g} s; its stderr:\n{self.stderr()}") from None

    def terminate(self, timeout: float = 30.0) -> int:
        """SIGTERM to the group, and wait for the end; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> int:
        """SIGKILL to the group, and wait for the end; returns -9."""
        self.signal(signal.SIGKILL)
        return self.wait()

    def stop(self) -> None:
        """SIGSTOP: freeze the group; its sockets stay open."""
        self.signal(signal.SIGSTOP)

    def freeze(self) -> None:
        """The same, and return when all threads of the process stand still."""
        self.stop()
        until(
            lambda: all(_state(each) == "T" for each in Path(f"/proc/{self.pid}/task").iterdir()), what="it is frozen"
        )

    def cont(self) -> None:
        """SIGCONT: thaw the group."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group."""
        os.killpg(self.pid, number)

    def close(self) -> None:
        """Kill what still runs of the group and remove the files; harmless when repeated."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            keeper.strike("group", self._process.pid)
        if self._folder is not None:
            self._last = {name: self._read(name) for name in ("stdout", "stderr")}
            keeper.strike("folder", Path(self._folder.name))
            self._folder.cleanup()
            self._folder = None

    # ---- sight ----------------------------------------------------------------------------------------------

    @property
    def process(self) -> Process:
        """The started process."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def pid(self) -> int:
        """Id of the process and of its group."""
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, None while the process runs."""
        return self.process.poll()

    def stdout(self) -> str:
        """What the process has written to stdout so far; readable after the end too."""
        return self._read("stdout")

    def stderr(self) -> str:
        """What the process has written to stderr so far; readable after the end too."""
        return self._read("stderr")

    def expect_alive(self) -> None:
        """Raise `WorkerDied` if the process has ended."""
        if self.returncode is not None:
            raise WorkerDied(f"the worker ended with {self.returncode}; its stderr:\n{self.stderr()}")

    def wait_log(self, pattern: str, timeout: float = 10.0) -> re.Match[str]:
        """Return the first match of a regular expression in stderr, waiting for it."""

        def found() -> re.Match[str] | None:
            ended = self.returncode  # first: what it says last it may say after a look at the log
            match = re.search(pattern, self.stderr())
            if match is None and ended not in (None, 0):
                self.expect_alive()
            return match

        return until(found, timeout, what=f"log line {pattern}")

    # ---- inside ---------------------------------------------------------------------------------------------

    def _file(self, name: str) -> Path:
        assert self._folder is not None, "not started"
        return Path(self._folder.name) / name

    def _read(self, name: str) -> str:
        if self._folder is None:
            return self._last[name]
        return self._file(name).read_text(errors="replace")


@contextmanager
def supervised(database: str, *modules: str, count: int, **options: Any) -> Iterator[list[WorkerProcess]]:
    """So many workers that are started again whenever they end, as a supervisor does; all that were started so far."""
    over, started = threading.Event(), []

    def keep_one_running() -> None:
        while not over.is_set():
            with WorkerProcess(database, *modules, **{"concurrency": 10, **options}) as worker:
                started.append(worker)
                while worker.returncode is None and not over.wait(0.02):
                    pass

    threads = [threading.Thread(target=keep_one_running) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield started
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def spelt(options: Mapping[str, object]) -> list[str]:
    """Keywords as the command line spells them."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        for each in value if isinstance(value, (list, tuple)) else [value]:
            words += [flag] if each is True else [] if each is None or each is False else [flag, str(each)]
    return words


def environment(database: str, path: Path | None, more: Mapping[str, str]) -> dict[str, str]:
    """Our environment without settings of ours or libpq's, with the database and the import path."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAGIK_", "PG"))}
    places = [str(path)] if path else []
    places += [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env |= {"MAGIK_DATABASE_URL": database, "PYTHONPATH": os.pathsep.join(places), "PYTHONFAULTHANDLER": "1"}
    taken_out = {VARIABLE: name} if (name := missing()) else {}
    return {**env, **taken_out, **more}
