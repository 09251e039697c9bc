"""A process that has imported the libraries already, and forks itself for each program that a test starts.

Most of what ``python -m magik_sa.cli`` costs is the import of other people's libraries. Here that is done once for a
run of tests. What is forked then is a process like any other: with an id, a session, a group, signals and an exit code
of its own, with the environment, the folder, the arguments and the three streams it was given, and with nothing else
open. The package is imported by that process itself, each time.

`asking` is the side that asks, and says what is not started here. Nothing but the standard library is needed: the
libraries may be missing, as far as this module goes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TextIO

LIBRARIES = (
    *("click", "concurrent.futures.thread", "croniter", "mako.template", "opentelemetry.trace", "psycopg"),
    *("pydantic.fields", "pydantic.json_schema", "pydantic.main", "pydantic.type_adapter", "pydantic.types"),
    *("rich.console", "rich.live", "rich.table", "secrets", "sqlalchemy.dialects.postgresql.psycopg"),
    *("sqlalchemy.ext.compiler", "sqlalchemy.ext.hybrid", "sqlalchemy.orm", "tomllib"),
)  # not alembic, which looks for plugins while it is imported, and ours is one
NUMBER = struct.Struct("i")  # what is answered: the process's id, and later its exit code
LONGEST = 100_000  # bytes of an order
STREAMS = 3


class Order(NamedTuple):
    """What to run, as `python` would be told: ``-W error`` or not; ``-m``, ``-c`` or no option; its name or text."""

    strict: bool
    kind: str
    what: str
    arguments: list[str]
    env: dict[str, str]
    cwd: str


class Program(NamedTuple):
    """One that was started: `line` leads to whoever asked."""

    pid: int
    line: int


class Starter:
    """The loop: orders come on `control`, each with the descriptors of three streams and of a line to answer on."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.running: dict[int, Program] = {}  # by a descriptor that can be read once the process has ended
        self.ended: dict[int, Program] = {}  # by line
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)

    def serve(self) -> tuple[Order, list[int], int] | None:
        """Returns in each forked process, with what it is to become, and here when nobody can ask any more."""
        while True:
            for ready, _ in self.poll.poll():
                if ready in self.running:
                    self._tell(ready)
                elif ready in self.ended:
                    self._reap(ready)
                elif (ordered := received(self.control)) is None:
                    self._kill_all()
                    return None
                elif self._fork(*ordered):
                    return ordered

    def _fork(self, _: Order, streams: list[int], line: int) -> bool:
        """Whether this is the new process."""
        pid = os.fork()
        if not pid:
            self.control.detach()  # `become` closes it; nobody is to close that number again
            return True
        ends = os.pidfd_open(pid)
        self.running[ends] = Program(pid, line)
        self.poll.register(ends, select.POLLIN)
        for descriptor in streams:
            os.close(descriptor)
        return False

    def _tell(self, ends: int) -> None:
        """Say how it ended. Until that is heard it stays a zombie, so that nobody else gets its id."""
        program = self.running.pop(ends)
        self.poll.unregister(ends)
        os.close(ends)
        found = os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        say(program.line, found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)
        self.ended[program.line] = program
        self.poll.register(program.line, select.POLLIN)

    def _reap(self, line: int) -> None:
        """It was heard: the other end is closed."""
        self.poll.unregister(line)
        os.close(line)
        os.waitpid(self.ended.pop(line).pid, 0)

    def _kill_all(self) -> None:
        for program in self.running.values():
            for kill in (os.kill, os.killpg):  # it may not have its group yet
                with contextlib.suppress(OSError):
                    kill(program.pid, signal.SIGKILL)


def received(control: socket.socket) -> tuple[Order, list[int], int] | None:
    """The next order with its three streams and its line, None when there will be none."""
    said, descriptors, _, _ = socket.recv_fds(control, LONGEST, STREAMS + 1)
    return (Order(*json.loads(said)), list(descriptors[:STREAMS]), descriptors[STREAMS]) if said else None


def say(line: int, number: int) -> None:
    """Whoever asked may be gone."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        os.write(line, NUMBER.pack(number))


# ---- in the new process -------------------------------------------------------------------------------------


def become(order: Order, streams: list[int], line: int) -> None:
    """Be what `python` would be when it gets to the first line of that program, and run it."""
    os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.chdir(order.cwd)
    say(line, os.getpid())
    os.closerange(STREAMS, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(order.env)
    time.tzset()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    sys.stdin, sys.stdout, sys.stderr = map(stream, (sys.stdin, sys.stdout, sys.stderr))
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc,assignment]
    if not order.env.get("PYTHONFAULTHANDLER"):
        faulthandler.disable()
    if order.strict:
        sys.warnoptions.append("error")
        warnings.simplefilter("error")
    run(order)


def run(order: Order) -> None:
    """What `python` itself does with ``-m``, with ``-c`` and with a file."""
    first = {"-m": str(Path.cwd()), "-c": "", "": str(Path(order.what).resolve().parent)}[order.kind]
    sys.path[:] = [first, *import_path(order.env.get("PYTHONPATH"))]
    sys.argv[:] = [order.kind or order.what, *order.arguments]
    main = sys.modules["__main__"] = ModuleType("__main__")
    importlib.invalidate_caches()
    if order.kind == "-m":
        runpy._run_module_as_main(order.what)  # type: ignore[attr-defined]
        return
    text, name = (order.what, "<string>") if order.kind else (Path(order.what).read_bytes(), order.what)
    if not order.kind:
        main.__dict__.update(__file__=name, __cached__=None)
    exec(compile(text, name, "exec", dont_inherit=True), main.__dict__)


def import_path(told: str | None) -> list[str]:
    """PYTHONPATH and our own, each place once, as `site` leaves them."""
    places = map(os.path.abspath, told.split(os.pathsep) if told else [])
    return list(dict.fromkeys([*places, *sys.path]))


def stream(old: Any) -> TextIO:
    """A standard stream anew, because what it leads to has changed: `python` makes them so at its start."""
    number, mode = old.fileno(), old.mode
    binary: Any = open(number, f"{mode}b", 0 if isinstance(old.buffer, io.FileIO) else -1, closefd=False)  # noqa: SIM115
    getattr(binary, "raw", binary).name = old.name
    new = io.TextIOWrapper(
        binary,
        old.encoding,
        old.errors,
        newline="\n",
        line_buffering=not old.write_through and (number == 2 or binary.isatty()),
        write_through=old.write_through,
    )
    new.mode = mode  # type: ignore[misc]
    return new


def main() -> None:
    """``python -m starter NUMBER``, in this folder: the descriptor that orders come on."""
    control = socket.socket(fileno=int(sys.argv[1]))
    del sys.path[0]  # this folder: its modules are nobody's libraries
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as in the programs that are run so
        for name in LIBRARIES:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    assert not [name for name in sys.modules if name.startswith(("magik_sa", "tests"))]
    gc.freeze()  # so that no process takes the libraries apart at its end: that would be most of its time
    if todo := Starter(control).serve():
        become(*todo)


if __name__ == "__main__":
    main()
