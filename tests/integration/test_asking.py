"""What the starter forks is what `subprocess` would start; what it cannot fork so goes to `subprocess`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools import asking
from tests.tools.asking import ROOT, Started, start
from tests.tools.keeper import alive
from tests.tools.waiting import until
from tests.tools.workers import environment

URL = "postgresql://nobody@127.0.0.1:1/x"
SELF = """
import gc, os, signal, sys, threading, warnings
for name in ("argv", "path", "flags", "warnoptions", "dont_write_bytecode", "pycache_prefix"):
    print(name, getattr(sys, name))
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream, stream.errors, stream.line_buffering, stream.write_through, stream.fileno(), stream.buffer)
print([each for each in sys.modules if each.startswith(("magik_sa", "tests"))])
def annotated(argument: 1 + 1) -> None: ...
print(annotated.__annotations__)
print(sorted({*vars(sys.modules["__main__"])} - {"__annotations__"}))
print(warnings.filters, sorted(os.environ.items()), os.getcwd(), sorted(os.listdir("/proc/self/fd")), os.umask(0))
print(os.getsid(0) == os.getpgid(0) == os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
print({each: signal.getsignal(each) for each in signal.valid_signals()})
print([each.name for each in threading.enumerate()], gc.isenabled(), gc.get_threshold(), gc.callbacks)
os.system("env; ls -l /proc/self/fd | wc -l; grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status")
"""


def command(*words: str) -> list[str]:
    return [sys.executable, *words]


def said(ended: subprocess.CompletedProcess[bytes]) -> list[object]:
    """All of it, by lines."""
    return [ended.returncode, *ended.stdout.splitlines(), *ended.stderr.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "seen.py").write_text(SELF)
    return tmp_path


@pytest.mark.parametrize("strict", [(), ("-W", "error")], ids=["", "strict"])
@pytest.mark.parametrize(
    "words",
    [("-m", "seen", "--word", "ü\udcff"), ("-c", SELF, "x"), ("seen.py", "x"), ("-m", "nowhere")],
    ids=lambda words: words[0],
)
def test_it_finds_itself_as_a_new_interpreter_does(folder: Path, strict: tuple[str, ...], words: tuple[str]) -> None:
    env = environment(URL, folder, {"MAGIK_SCHEMA": "a b\udcff", "TZ": "Asia/Tokyo", "EMPTY": ""})
    both = [asking.run(command(*strict, *words), env=env, cwd=folder, fresh=fresh) for fresh in (True, False)]
    assert said(both[0]) == said(both[1])
    assert both[0].stdout or "nowhere" in words


@pytest.mark.parametrize(
    "words", [("magik_sa.cli", "--help"), ("magik_sa.worker", "nowhere")], ids=lambda words: words[0]
)
def test_our_programs_say_the_same(words: tuple[str], tmp_path: Path) -> None:
    both = [
        asking.run(command("-W", "error", "-m", *words), env=environment(URL, None, {}), cwd=tmp_path, fresh=fresh)
        for fresh in (True, False)
    ]
    assert said(both[0]) == said(both[1])


@pytest.mark.parametrize(
    ("program", "code"),
    {
        "pass": 0,
        "raise SystemExit(7)": 7,
        "raise SystemExit('text')": 1,
        "import os; os._exit(255)": 255,
        "1 / 0": 1,
        "raise KeyboardInterrupt": -signal.SIGINT,
        "import os; os.kill(os.getpid(), 9)": -signal.SIGKILL,
        "import os; os.kill(os.getpid(), 15)": -signal.SIGTERM,
        "import os; os.abort()": -signal.SIGABRT,
        "import atexit, os; atexit.register(os._exit, 5)": 5,
        "import threading; threading.Timer(0.1, lambda: __import__('os')._exit(6)).start()": 6,
    }.items(),
)
def test_its_exit_code_is_the_true_one(program: str, code: int) -> None:
    env = environment(URL, None, {})
    for fresh in (True, False):
        assert asking.run(command("-c", program), env=env, fresh=fresh).returncode == code


# ---- a process like any other


@pytest.fixture
def sleeper() -> Iterator[Any]:
    env = environment(URL, None, {})
    process = start(command("-c", "import time; time.sleep(60)"), env=env, cwd=ROOT, stdout=os.dup(1), stderr=os.dup(2))
    yield process
    process.kill()
    process.wait(10)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_it_is_frozen_thawed_and_killed_by_its_id_and_its_group(sleeper: Started) -> None:
    assert isinstance(sleeper, Started)
    until(lambda: os.getpgid(sleeper.pid) == sleeper.pid)
    os.killpg(sleeper.pid, signal.SIGSTOP)
    until(lambda: state(sleeper.pid) == "T")
    os.kill(sleeper.pid, signal.SIGCONT)
    until(lambda: state(sleeper.pid) != "T")
    with pytest.raises(subprocess.TimeoutExpired):
        sleeper.wait(0.05)
    assert (sleeper.poll(), sleeper.returncode) == (None, None)
    sleeper.send_signal(signal.SIGTERM)
    assert sleeper.wait(10) == sleeper.returncode == -signal.SIGTERM


def test_nobody_else_gets_its_id_before_its_end_was_heard(sleeper: Started) -> None:
    os.kill(sleeper.pid, signal.SIGKILL)
    until(lambda: state(sleeper.pid) == "Z")
    os.killpg(sleeper.pid, signal.SIGTERM)
    assert sleeper.wait(10) == -signal.SIGKILL
    until(lambda: not Path(f"/proc/{sleeper.pid}").exists())
    sleeper.send_signal(signal.SIGTERM)


def test_the_starter_is_left_with_nothing(sleeper: Started) -> None:
    starter = asking.asking().process.pid

    def children() -> list[str]:
        return Path(f"/proc/{starter}/task/{starter}/children").read_text().split()

    def descriptors() -> int:
        return len(list(Path(f"/proc/{starter}/fd").iterdir()))

    def again() -> None:
        assert asking.run(command("-c", "print(1)"), env=environment(URL, None, {})).stdout == b"1\n"
        until(lambda: children() == [str(sleeper.pid)])

    again()  # by now it is done with starting the sleeper, and with all that came before
    before = descriptors()
    for _ in range(5):
        again()
    assert descriptors() == before


KILLED = """
import os, sys
from tests.tools import asking
from tests.tools.workers import environment
sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
process = asking.start(sleeps, env=environment("postgresql:///x", None, {}), cwd=asking.ROOT, stdout=2, stderr=2)
print(process.pid, asking.asking().process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_it_ends_with_the_tests_also_when_they_are_killed() -> None:
    ended = subprocess.run(command("-c", KILLED), env=environment(URL, None, {}), stdout=subprocess.PIPE, check=False)
    assert ended.returncode == -signal.SIGKILL
    for pid in map(int, ended.stdout.split()):
        until(lambda pid=pid: not alive(pid))  # type: ignore[misc]


# ---- what it is not


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (["-c", "pass"], {"PYTHONUTF8": "1"}),
        (["-c", "pass"], {"LD_PRELOAD": ""}),
        (["-c", "pass"], {"LC_ALL": "C"}),
        (["-X", "dev", "-c", "pass"], {}),
        (["-W", "ignore", "-c", "pass"], {}),
        (["-c", "pass", b"\xff"], {}),
        (["-c", "pass" + " " * 100_000], {}),
        (["--version"], {}),
    ],
    ids=["utf-8 mode", "a library", "a locale", "an option", "other warnings", "bytes", "too long", "no program"],
)
def test_what_only_a_new_interpreter_takes_up_has_one(words: list[Any], more: dict[str, str]) -> None:
    assert asking.order(command("-c", "pass"), environment(URL, None, {}), ROOT)
    assert asking.order([sys.executable, *words], environment(URL, None, more), ROOT) is None


@pytest.mark.parametrize("name", ["sitecustomize.py", "json.py", "click"])
def test_a_module_that_would_have_been_imported_at_the_start_has_a_new_interpreter(folder: Path, name: str) -> None:
    env = environment(URL, folder, {})
    assert asking.order(command("-c", "pass"), env, ROOT)
    (folder / name).touch()
    assert asking.order(command("-c", "pass"), env, ROOT) is None
    assert asking.order(command("-c", "pass"), environment(URL, None, {}), folder) is None
