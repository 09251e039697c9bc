"""``magik check``: what a start would refuse, without any database, and warnings that refuse nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_worker_refuses import MODULES
from tests.tools.program import run

NOWHERE = "postgresql+psycopg://nobody:s3cret@nowhere.invalid/none"  # nobody is to connect there
SLOW = """
import time
from sqlalchemy.orm import Mapped
from magik_sa import Job, Retries, Schedule, arg
class Slow(Job, policy="system", queue="a"):
    schedule = Schedule(every="1s")
    retries = Retries(timeout="5s")
    def perform(self, session):
        session.flush()
        time.sleep(1)
class Busy(Job, policy="system", queue="b"):
    numbers: Mapped[list[int]] = arg()
    def perform(self, session):
        for number in self.numbers: number ** 2
class Fine(Job, policy="system", queue="c"):
    def perform(self, session): ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Modules, fine and wrong."""
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source.replace("\n        ", "\n"))
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


def check(folder: Path, *words: str, url: str = NOWHERE, **env: str) -> tuple[int, str, str]:
    env = {"PYTHONPATH": str(Path(__file__).parents[2]), "MAGIK_DATABASE_URL": url, **env}
    return run(NOWHERE, "check", *words, env=env, cwd=folder)


@pytest.mark.parametrize("url", [NOWHERE, ""])
def test_what_may_start_is_0_with_and_without_a_url(folder: Path, url: str) -> None:
    code, out, err = check(folder, "fine", "recurring", url=url)
    assert (code, err) == (0, "")
    assert out.startswith("jobs: 2, queues: 1, schedules: 1. ")


IMPORT = "MAGIK_MODULE_IMPORT_FAILED"


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        (["nowhere", "broken", "misdeclared", "fine"], [IMPORT, IMPORT, "MAGIK_OPTION_UNKNOWN"]),
        (["lawless", "strange"], ["MAGIK_POLICY_UNDECLARED", "MAGIK_POLICY_UNKNOWN"]),
        (["empty"], ["MAGIK_NO_JOBS"]),
        ([], ["MAGIK_NO_JOBS"]),
        (["fine", "--session", "sessions:everybodys"], ["MAGIK_SESSION_NOT_THREAD_KEYED", "MAGIK_POOL_SIZE_MISMATCH"]),
        (["lawless", "--session", "sessions:nothing"], ["MAGIK_POLICY_UNDECLARED", "MAGIK_SESSION_INVALID"]),
        (["fine", "--queue", "a,default"], ["MAGIK_SETTING_INVALID"]),
        (["clashing"], ["MAGIK_SCHEDULE_NAME_TAKEN"]),
    ],
    ids=str,
)
def test_what_may_not_start_is_2_with_a_line_for_each_finding(folder: Path, words: list[str], codes: list[str]) -> None:
    code, out, err = check(folder, *words)
    assert (code, out) == (2, "")
    assert [line.split(":")[0] for line in err.splitlines()] == codes
    assert "s3cret" not in err


def test_a_url_that_cannot_be_read_is_found_and_not_repeated(folder: Path) -> None:
    code, _, err = check(folder, "lawless", url="mysql://u:s3cret@localhost/x", MAGIK_LOCKING_URL="s3cret")
    assert code == 2
    assert [line.split(":")[0] for line in err.splitlines()] == [
        "MAGIK_POLICY_UNDECLARED",
        "MAGIK_DATABASE_URL_INVALID",
    ]
    assert "s3cret" not in err


def test_shapes_that_do_not_scale_are_warnings_and_0(folder: Path) -> None:
    code, out, err = check(folder, "slow", "--scale")
    assert (code, err) == (0, "")
    *told, last = out.splitlines()
    warned, causes, remedies = told[::3], told[1::3], told[2::3]
    shapes = ["transaction", "loop", "queues", "schedule"]
    assert all(line.startswith("    cause: ") for line in causes)
    assert [line.split("warning[")[1].split("]")[0] for line in warned] == shapes
    assert all(line.startswith("slow.py:") for line in warned)
    assert all(
        line.startswith("    remedy: ") and line.endswith(f"# magik: ignore[{shape}]")
        for line, shape in zip(remedies, shapes, strict=True)
    )
    assert last.startswith("jobs: 3, queues: 3, schedules: 1, warnings: 4. ")


def test_without_scale_nothing_is_said_of_them(folder: Path) -> None:
    code, out, _ = check(folder, "slow")
    assert (code, len(out.splitlines())) == (0, 1)


@pytest.mark.parametrize("env", [{}, {"MAGIK_QUEUES": "defalt"}], ids=["an option", "the environment"])
def test_a_queue_that_is_named_and_that_no_class_has_is_a_warning_and_0(folder: Path, env: dict[str, str]) -> None:
    code, out, err = check(folder, "fine", *([] if env else ["--queue", "default", "--queue", "defalt"]), **env)
    warned, cause, remedy, last = out.splitlines()
    assert (code, err) == (0, "")
    assert warned == "--queue defalt: warning[queue]: no job class here has this queue; did you mean 'default'?"
    assert cause.startswith("    cause: ")
    assert remedy.startswith("    remedy: ")
    assert "ignore[" not in remedy
    assert last.startswith("jobs: 1, queues: 1, schedules: 0, warnings: 1. ")
    _, out, _ = check(folder, "fine", "--queue", "nope", "--json")
    (told,) = json.loads(out)["warnings"]
    assert (told["shape"], told["where"], told["job"]) == ("queue", "--queue nope", None)
    assert told["said"] == "no job class here has this queue"


def test_of_the_queue_that_is_worked_where_none_is_named_nothing_is_said(folder: Path) -> None:
    code, out, _ = check(folder, "slow", "--queue", "a", "--queue", "c")
    assert (code, len(out.splitlines())) == (0, 1)
    code, out, _ = check(folder, "slow")
    assert (code, len(out.splitlines())) == (0, 1)


def test_as_json_it_is_one_document(folder: Path) -> None:
    code, out, _ = check(folder, "slow", "--scale", "--json")
    told: dict[str, Any] = json.loads(out)
    assert (code, told["jobs"], told["queues"], told["schedules"]) == (
        0,
        ["Busy", "Fine", "Slow"],
        ["a", "b", "c"],
        ["Slow"],
    )
    assert {"shape": "loop", "job": "Busy"}.items() <= told["warnings"][1].items()
    assert set(told["warnings"][0]) == {"shape", "where", "job", "said", "why"}
    code, out, _ = check(folder, "lawless", "--scale", "--json")
    assert (code, [error["code"] for error in json.loads(out)["errors"]]) == (2, ["MAGIK_POLICY_UNDECLARED"])
