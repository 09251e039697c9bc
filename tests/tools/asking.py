"""Programs started as processes: by the starter, which has the libraries imported already, or by `subprocess`.

`start` has the meaning of `subprocess.Popen` with a new session. It asks the starter where a process that `python`
itself started would be the same, and `subprocess` for everything else.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Protocol

from . import starter

ROOT = Path(__file__).resolve().parents[2]
STRICT = ["-W", "error"]
SETTLED = (
    *("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "OPENSSL_"),
    *("DISABLE_SQLALCHEMY_", "OTEL_", "PSYCOPG_", "PYDANTIC_"),
)  # what an interpreter, its C libraries and the packages read once, at their start
CAUGHT_UP = ("PYTHONPATH", "PYTHONFAULTHANDLER")  # but for these
AT_THE_START = frozenset({"sitecustomize", "usercustomize", *sys.stdlib_module_names})
LOOK = 500  # milliseconds


class Process(Protocol):
    """What a started program is to a test, whoever started it: this much of `subprocess.Popen`."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...


class StarterDied(RuntimeError):
    """The starter ended before its programs did; its stderr is that of the tests."""


class Started:
    """A program that the starter forked. It is reaped once its exit code was read here, as a child would be."""

    def __init__(self, command: Sequence[str], line: socket.socket) -> None:
        self.args, self._line = list(command), line
        self.returncode: int | None = None
        self._reading = threading.Lock()
        self.pid = self._number(line.recv(starter.NUMBER.size))

    def poll(self) -> int | None:
        """The exit code, below 0 for a signal; None while it runs."""
        with self._reading:
            if self.returncode is None:
                with contextlib.suppress(BlockingIOError):
                    self.returncode = self._number(self._line.recv(starter.NUMBER.size, socket.MSG_DONTWAIT))
                    self._line.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once there is one. Raises `subprocess.TimeoutExpired`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = LOOK if deadline is None else (deadline - time.monotonic()) * 1000
            if left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self._look(min(left, LOOK))
        return code

    def send_signal(self, sig: int, /) -> None:
        """To the process; to none that has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _look(self, milliseconds: float) -> None:
        """Return when there may be something to read; another thread may have read it, and closed the line."""
        with contextlib.suppress(ValueError):
            looking = select.poll()
            looking.register(self._line, select.POLLIN)
            looking.poll(milliseconds)

    def _number(self, said: bytes) -> int:
        if not said:
            self._line.close()
            raise StarterDied(f"no answer about {self.args}")
        number: int = starter.NUMBER.unpack(said)[0]
        return number


class Asking:
    """The side that asks: one starter for this process, started at the first order."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = here
        env = ours()
        self.settled = settled(env)
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "starter", str(there.fileno())],
                cwd=Path(starter.__file__).parent,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
                start_new_session=True,
            )

    def ask(self, command: Sequence[str], said: bytes, streams: Iterable[int]) -> Started:
        """Have it started."""
        mine, theirs = socket.socketpair()
        with theirs, contextlib.suppress(BrokenPipeError):  # then there is no answer either
            socket.send_fds(self.control, [said], [*streams, theirs.fileno()])
        return Started(command, mine)

    def close(self) -> None:
        """Let the starter end, and with it what it started."""
        self.control.close()
        self.process.wait(30)


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdout: int,
    stderr: int,
    stdin: int | None = None,
    fresh: bool = False,
) -> Process:
    """The command as a process in a session of its own, `fresh` always by `subprocess`. No `stdin` is an empty one."""
    with Path(os.devnull).open("rb") as nothing:
        stdin = nothing.fileno() if stdin is None else stdin
        said = None if fresh else order(command, env, cwd)
        if said is not None:
            return asking().ask(command, said, (stdin, stdout, stderr))
        return subprocess.Popen(
            command, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
        )


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path = ROOT,
    together: bool = False,
    fresh: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    """The command from its start to its end, with what it wrote; `together` is all of it in stdout, as on a screen."""
    with TemporaryFile() as out, TemporaryFile() as err:
        both = (out, out if together else err)
        stdout, stderr = (each.fileno() for each in both)
        process = start(command, env=env, cwd=cwd, stdout=stdout, stderr=stderr, fresh=fresh)
        try:
            code = process.wait(60)
        finally:
            process.kill()
            process.wait()
        return subprocess.CompletedProcess(list(command), code, written(out), written(err))


def written(file: IO[bytes]) -> bytes:
    """All of it."""
    file.seek(0)
    return file.read()


def told(command: Sequence[str], *, env: Mapping[str, str], cwd: Path = ROOT, code: int = 0) -> str:
    """What it printed, of a command that ends as expected."""
    ended = run(command, env=env, cwd=cwd)
    assert ended.returncode == code, (ended.returncode, ended.stdout.decode(), ended.stderr.decode())
    return ended.stdout.decode()


def order(command: Sequence[str], env: Mapping[str, str], cwd: Path) -> bytes | None:
    """What the starter is told, None for what it is not to start."""
    python, *words = command
    if strict := words[:2] == STRICT:
        words = words[2:]
    if python != sys.executable or not words or not cwd.is_dir() or not able():
        return None
    kind = words.pop(0) if words[0] in ("-m", "-c") else ""
    if not words or (not kind and not is_file(words[0], cwd)):
        return None
    if settled(env) != asking().settled or shadows([str(cwd), *env.get("PYTHONPATH", "").split(os.pathsep)]):
        return None
    try:
        said = json.dumps(starter.Order(strict, kind, words[0], words[1:], dict(env), str(cwd))).encode()
    except TypeError:  # bytes, which `subprocess` takes too
        return None
    return said if len(said) < starter.LONGEST else None


def is_file(word: str | bytes, cwd: Path) -> bool:
    """Whether this is a program, and no other option of `python`."""
    return isinstance(word, str) and not word.startswith("-") and (cwd / word).is_file()


@cache
def able() -> bool:
    """Whether this system can tell that a process has ended, in the way that the starter asks."""
    with contextlib.suppress(AttributeError, OSError):
        os.close(os.pidfd_open(os.getpid()))
        return True
    return False


def ours() -> dict[str, str]:
    """The environment of the starter: that of the tests, without what is up to each program."""
    return {name: value for name, value in os.environ.items() if name not in CAUGHT_UP} | {"PYTHONFAULTHANDLER": "1"}


def settled(env: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a running process could not catch up with."""
    return {name: value for name, value in env.items() if name.startswith(SETTLED) and name not in CAUGHT_UP}


def shadows(places: Iterable[str]) -> bool:
    """Whether a module there would have been imported at the start, or instead of a library."""
    known = AT_THE_START | {name.split(".")[0] for name in starter.LIBRARIES}
    theirs = {Path(place).resolve() for place in places} - {ROOT}
    return any(entry.stem in known for place in theirs if place.is_dir() for entry in place.iterdir())


_asking: list[Asking] = []


def asking() -> Asking:
    """This process's own; one that was forked from another process of the tests gets another."""
    if not _asking or _asking[-1].owner != os.getpid():
        _asking.append(Asking())
        atexit.register(close)
    return _asking[-1]


def close() -> None:
    """End the starter, if this process has one."""
    if _asking and _asking[-1].owner == os.getpid():
        _asking.pop().close()
