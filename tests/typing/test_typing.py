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
Faults = dict[tuple[str, int], str]  # message of each error, by program and line


def run(*command: str) -> str:
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110).stdout


def mypy(programs: list[Path], cache: Path) -> Faults:
    """The errors of programs that are checked at once."""
    options = [
        "--strict",
        f"--config-file={os.devnull}",
        f"--cache-dir={cache}",
        "--follow-imports=silent",
        "--no-pretty",
    ]
    command = [*options, "--no-color-output", "--show-error-codes", *map(str, programs)]
    told = run(sys.executable, "-m", "mypy", *command)
    assert told.splitlines()[-1].endswith(f"(checked {len(programs)} source files)"), told
    found = re.findall(r"^tests/typing/(\w+\.py):(\d+): error: (.*)$", told, re.MULTILINE)
    return {(name, int(line)): message for name, line, message in found}


def pyright(programs: list[Path], project: Path) -> Faults:
    """The same, in a project of their own: this repository's leaves the folder out."""
    names = [program.name for program in programs]
    settings = {"include": names, "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (project / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    for program in programs:
        shutil.copy(program, project)
    told = run(sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(project))
    report = json.loads(told[told.index("{") :])
    assert report["summary"]["filesAnalyzed"] == len(programs)
    errors = [one for one in report["generalDiagnostics"] if one["severity"] == "error"]
    return {(Path(one["file"]).name, one["range"]["start"]["line"] + 1): one["message"] for one in errors}


CHECKERS = {"mypy": mypy, "pyright": pyright}


def marked(program: Path, checker: str) -> set[tuple[str, int]]:
    marks = {number: MARK.search(line) for number, line in enumerate(program.read_text("utf-8").splitlines(), 1)}
    return {(program.name, number) for number, mark in marks.items() if mark and mark[1] in (None, checker)}


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_the_checker_reports_the_marked_lines_and_no_other(checker: str, tmp_path: Path) -> None:
    programs = [HERE / "right.py", HERE / "wrong.py"]
    reported = CHECKERS[checker](programs, tmp_path)
    assert set(reported) == {mark for program in programs for mark in marked(program, checker)}, reported


def test_the_right_program_runs() -> None:
    """What the checkers are told is what happens."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-W", "error", str(HERE / "right.py")], check=True, cwd=ROOT, env=environment)
