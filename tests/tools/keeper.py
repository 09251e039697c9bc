"""A small process that cleans up after a test run, however that run ends.

Servers, workers and folders are told to it; when the run's end of the pipe closes, by SIGKILL too, it kills the
process groups, stops the servers and removes the folders that have not been struck off. Run as a module it is that
process; imported it is the telling side.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


class Keeper:
    """The telling side: one keeper process for this process, started at the first word.

    Kinds: a ``group`` of processes is killed, a ``cluster`` stopped, a ``folder`` removed. Before that a ``step`` is
    waited for: a process that ends by itself soon, and would leave things behind if it did not.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def note(self, kind: str, what: int | Path) -> None:
        """Clean `what` up if we die."""
        self._tell(f"+{kind} {what}")

    def strike(self, kind: str, what: int | Path) -> None:
        """`what` was cleaned up by its owner; leave it alone."""
        self._tell(f"-{kind} {what}")

    def _tell(self, line: str) -> None:
        if self._process is None or self._owner != os.getpid():
            self._process, self._owner = self._start(), os.getpid()
            atexit.register(self.close)
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-S", "-E", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C at the terminal is meant for the tests
        )

    def close(self) -> None:
        """Let the keeper do what is left, and wait for it."""
        if self._process is not None and self._owner == os.getpid():
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(30)
            self._process = None


keeper = Keeper()


def alive(pid: int) -> bool:
    """Whether a process of this id runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"


def postmaster(data: Path) -> int | None:
    """The process id of the server that has this data folder, from its own lock file."""
    try:
        return int((data / "postmaster.pid").read_text().split("\n")[0])
    except (OSError, ValueError):
        return None


def _gone(pid: int, within: float) -> bool:
    """Wait for the end of a process that is not our child."""
    deadline = time.monotonic() + within
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def _stop_cluster(data: Path) -> None:
    pid = postmaster(data)
    if pid is None or not alive(pid):
        release(data)
        return
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGQUIT)  # the "immediate" mode: no files are left in shared memory, unlike SIGKILL
    if not _gone(pid, 10):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        release(data)


def release(data: Path) -> None:
    """Remove the shared memory of a server that was killed: nobody else would, when its data are not used again."""
    with contextlib.suppress(OSError, IndexError):
        key_and_id = (data / "postmaster.pid").read_text().split("\n")[6].split()
        present = [line.split()[:2] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
        if key_and_id in present:
            ctypes.CDLL(None).shmctl(int(key_and_id[1]), 0, None)  # 0 is IPC_RMID


def _clean(noted: list[tuple[str, str]]) -> None:
    for kind, clean in STEPS.items():
        for what in [what for noted_kind, what in noted if noted_kind == kind]:
            clean(what)


def _kill_group(pid: str) -> None:
    with contextlib.suppress(OSError):
        os.killpg(int(pid), signal.SIGKILL)


STEPS: dict[str, Callable[[str], object]] = {  # in this order
    "group": _kill_group,
    "step": lambda pid: _gone(int(pid), 30),
    "cluster": lambda data: _stop_cluster(Path(data)),
    "folder": lambda folder: shutil.rmtree(folder, ignore_errors=True),
}


def main() -> None:
    """Read notes until the pipe closes, then clean up what is still noted."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    noted: list[tuple[str, str]] = []
    for line in sys.stdin:
        kind, _, what = line[1:].rstrip("\n").partition(" ")
        if line[0] == "+":
            noted.append((kind, what))
        elif (kind, what) in noted:
            noted.remove((kind, what))
    _clean(noted)


if __name__ == "__main__":
    main()
