"""What a worker and the program `magik` print holds one line for each thing, and nothing that a terminal would obey."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.tools import asking
from tests.tools.workers import WorkerProcess, environment

ESCAPE = "\x1b[2J\u202e<script>\r\nMAGIK_FORGED: x\u2028\x9b"
APP_NAME = "a\"b' %s {} :x; --"
MODULE = f"""
from sqlalchemy.orm import Mapped, Session
from magik_sa import Job, Schedule, arg


class Hostile(Job, policy="system", name={ESCAPE!r} + "1", queue={ESCAPE!r}):
    schedule = Schedule(every="1h", name={ESCAPE!r})

    def perform(self, session: Session) -> None: ...


class Denied(Job, policy={ESCAPE!r} + "verb", name={ESCAPE!r} + "2"):
    def perform(self, session: Session) -> None: ...
"""
RAISES = {
    "an_error": f"raise RuntimeError({ESCAPE!r})",
    "a_zone": f'from magik_sa import Schedule\nSchedule(cron="0 3 * * *", zone={ESCAPE!r})',
    "a_cron": f'from magik_sa import Schedule\nSchedule(cron={ESCAPE!r}, zone="UTC")',
    "a_name": f"from magik_sa import Job\nclass X(Job, **{{{ESCAPE!r}: 1}}): ...",
}


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder of modules that say hostile things."""
    (tmp_path / "hostile.py").write_text(MODULE)
    for name, text in RAISES.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def expect_lines(text: bytes, begin: tuple[str, ...]) -> None:
    """Each line is plain, and of the worker's own."""
    for line in text.decode().split("\n")[:-1]:
        assert line.isprintable(), line
        assert line.startswith(begin), line


def test_a_refused_boot_is_one_plain_line_a_finding(database: str, hostile: Path) -> None:
    program = [sys.executable, "-m", "magik_sa.worker", "hostile", *RAISES, ESCAPE, "--session", f"{ESCAPE}:{ESCAPE}"]
    env = environment(database, hostile, {"MAGIK_SCHEMA": ESCAPE})
    ended = asking.run(program, env=env)
    assert (ended.returncode, ended.stdout) == (2, b"")
    expect_lines(ended.stderr, ("MAGIK_MODULE_IMPORT_FAILED: ", "MAGIK_SCHEDULE_", "MAGIK_OPTION_", "MAGIK_SESSION_"))
    assert len(ended.stderr.splitlines()) == len(RAISES) + 2


@pytest.mark.parametrize(
    "given",
    [["--concurrency", ESCAPE], [f"--{ESCAPE}"], ["--app-name", ESCAPE], ["--poll-interval", ESCAPE]],
    ids=["a value", "an option", "a name", "a duration"],
)
@pytest.mark.parametrize("program", ["magik_sa.worker", "magik_sa.cli"])
def test_a_refused_option_is_one_plain_line(program: str, given: list[str]) -> None:
    command = [sys.executable, "-m", program, *(["worker"] if program.endswith("cli") else []), *given]
    env = environment("postgresql://nobody@127.0.0.1:1/x", None, {})
    ended = asking.run(command, env=env)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    expect_lines(ended.stderr, ("MAGIK_SETTING_INVALID: ",))


def test_the_log_of_a_worker_is_one_plain_line_an_event(database: str, hostile: Path) -> None:
    """Hostile names of classes, queues and schedules among what is in force."""
    (hostile / "hostile.py").write_text(MODULE.partition("\n\nclass Denied")[0])
    with WorkerProcess(database, "hostile", path=hostile, queue=[ESCAPE], app_name=APP_NAME) as worker:
        worker.wait_log("event=ready")
        assert worker.terminate() == 0
    expect_lines(worker.stderr().encode(), ("20",))
    assert "\\u001b[2J\\u202e<script>" in worker.stderr()
