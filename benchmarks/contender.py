"""A contender from the runner's side: its commands are processes, and none outlives the block."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import psutil

ROOT: Final = Path(__file__).resolve().parents[1]
LONGEST: Final = 900.0  # seconds that a command may take


class Failed(RuntimeError):
    """A contender's process ended with an error; the text is the end of what it said."""


@dataclass(frozen=True)
class Contender:
    """`module` of `peers`, shown as `name`, with these variables in its environment."""

    name: str
    module: str
    env: tuple[tuple[str, str], ...] = ()
    drain: int = 20_000  # jobs of a drain, for some seconds each

    def call(self, command: str, **options: object) -> dict[str, Any]:
        """Run a command to its end; what it answers. Raises `Failed`."""
        done = subprocess.run(
            self.line(command, options),
            env=self.environment(),
            cwd=ROOT,
            text=True,
            timeout=LONGEST,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise Failed(f"{self.name} {command}: {done.stderr[-1500:]}")
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer

    def line(self, command: str, options: dict[str, object]) -> list[str]:
        """The command line."""
        words = [sys.executable, "-m", "benchmarks.contract", self.module, command]
        for name, value in options.items():
            words += [f"--{name}", str(value)]
        return words

    def environment(self, **more: str) -> dict[str, str]:
        """Ours without settings of the queue's or libpq's."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("MAGIK_", "PG"))}
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**env, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **dict(self.env), **more}


@dataclass
class Processes:
    """Those that one case has started."""

    log: Path
    running: list[psutil.Popen] = field(default_factory=list)

    def start(self, contender: Contender, command: str, env: dict[str, str], **options: object) -> psutil.Popen:
        """Start a command that goes on."""
        with self.log.open("ab") as log:
            return self.launch(contender.line(command, options), contender.environment(**env), log)

    def launch(self, line: list[str], env: dict[str, str], log: IO[bytes]) -> psutil.Popen:
        """Start anything else that ends with the others."""
        process = psutil.Popen(line, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.running.append(process)
        return process

    def stop(self) -> None:
        """SIGTERM for all and for their children, SIGKILL for those that stay."""
        tree = [each for process in self.running for each in family(process)]
        for process in self.running:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
        for process in psutil.wait_procs(tree, timeout=8)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(tree, timeout=8)
        self.running.clear()

    def cpu(self) -> float:
        """CPU seconds of all of them and their children so far."""
        total = 0.0
        for process in self.running:
            for each in family(process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = each.cpu_times()
                    total += times.user + times.system
        return total

    def kib(self, name: str) -> int:
        """The largest `VmRSS` or `VmHWM` among them, children added."""
        return max(sum(_status(each.pid, name) for each in family(process)) for process in self.running)


def family(process: psutil.Popen) -> list[Any]:
    """The process and its children; none where it has ended."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _status(pid: int, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    return 0
