"""What mypy --strict and pyright know of a job class: constructor, values, expressions, and every marked mistake."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MARK = re.compile(r"# wrong(?:: (\w+))?$")


def run(*command: str) -> str:
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110).stdout


def mypy(program: Path, cache: Path) -> dict[int, str]:
    """Line → message of the errors in one program."""
    options = [
        "--strict",
        f"--config-file={os.devnull}",
        f"--cache-dir={cache}",
        "--follow-imports=silent",
        "--no-pretty",
    ]
    told = run(sys.executable, "-m", "mypy", *options, "--no-color-output", "--show-error-codes", str(program))
    assert told.splitlines()[-1].startswith(("Success", "Found")), told
    found = re.findall(rf"^{re.escape(str(program.relative_to(ROOT)))}:(\d+): error: (.*)$", told, re.MULTILINE)
    return {int(line): message for line, message in found}


def pyright(program: Path, project: Path) -> dict[int, str]:
    """Line → message of the errors in one program, in a project of its own: this repository's leaves the folder out."""
    settings = {"include": [program.name], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (project / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    shutil.copy(program, project)
    told = run(sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(project))
    report = json.loads(told[told.index("{") :])
    assert report["summary"]["filesAnalyzed"] == 1
    errors = [one for one in report["generalDiagnostics"] if one["severity"] == "error"]
    return {one["range"]["start"]["line"] + 1: one["message"] for one in errors}


CHECKERS = {"mypy": mypy, "pyright": pyright}


def marked(program: Path, checker: str) -> set[int]:
    marks = {number: MARK.search(line) for number, line in enumerate(program.read_text("utf-8").splitlines(), 1)}
    return {number for number, mark in marks.items() if mark and mark[1] in (None, checker)}


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("name", ["right.py", "wrong.py"])
def test_the_checker_reports_the_marked_lines_and_no_other(checker: str, name: str, tmp_path: Path) -> None:
    program = HERE / name
    reported = CHECKERS[checker](program, tmp_path)
    assert set(reported) == marked(program, checker), reported


def test_the_right_program_runs() -> None:
    """What the checkers are told is what happens."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-W", "error", str(HERE / "right.py")], check=True, cwd=ROOT, env=environment)
