"""docs/guarantees.md says each promise once, with tests that exist, and what one looks for there has its anchor."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.controls import __path__ as controls
from tests.promises.table import LINES
from tests.tools.workers import ROOT

from .test_docs import anchors

PAGE = (ROOT / "docs" / "guarantees.md").read_text()
README = (ROOT / "README.md").read_text()
PROMISES = {
    number: (title, body)
    for number, title, body in re.findall(r"^### (\d+)\. (.+)\n((?:(?!^##).*\n)*)", PAGE, re.MULTILINE)
}
TEST = re.compile(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)")

# What a reader looks for, the anchor that leads there, and what is said at it.
LOOKED_FOR = {
    "delivery": r"Delivery is at least once",
    "order": r"they end in any order",
    "deploy": r"a deploy \(SIGTERM\)",
    "timeout": r"it lasts longer than its \[`timeout`\]",
    "lost-worker": r"its worker is killed",
    "failover": r"the server restarts",
    "upgrade": r"the tables are upgraded",
    "dedupe-windows": r"Three windows",
    "poolers": r"Enqueueing works through any",
}


def functions(file: Path) -> set[str]:
    """The tests of a module."""
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def test_the_readme_says_the_same_ten_promises_and_links_here() -> None:
    said = dict(re.findall(r"^(\d+)\. (.+)$", README.partition("## What is promised")[2], re.MULTILINE))
    assert [*PROMISES] == [*said] == [str(number) for number in range(1, 11)]
    short = {number: (title.rstrip("."), said[number]) for number, (title, _) in PROMISES.items()}
    assert [number for number, (title, sentence) in short.items() if not sentence.startswith(title)] == []
    assert "](docs/guarantees.md)" in README


def test_every_test_that_is_named_exists() -> None:
    named = TEST.findall(PAGE)
    assert len(named) > 50
    assert [(name, file) for name, file in named if name not in functions(ROOT / file)] == []


@pytest.mark.parametrize("number", PROMISES)
def test_every_promise_names_what_it_rests_on_its_tests_and_what_it_does_not_mean(number: str) -> None:
    _, body = PROMISES[number]
    for line in (line for line in LINES if line.promise.partition(",")[0] == number):
        file, _, node = line.test.partition("::")
        assert f"| {line.mechanism} | [{node.partition('[')[0]}](../{file}) | " in body
    assert "*Not promised:*" in body or number == "7"


def test_no_row_of_the_page_is_left_out_of_the_command() -> None:
    rows = re.findall(r"^\| (?!it rests on|-)(.+?) \| \[test_\w+\]\([^)]+\) \| .+ \|$", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(line.mechanism for line in LINES)


@pytest.mark.parametrize("anchor", LOOKED_FOR)
def test_what_a_reader_looks_for_stands_once_at_its_anchor(anchor: str) -> None:
    assert anchor in anchors(PAGE)
    found = re.findall(rf'<a id="{anchor}"></a>(?:\n## .+\n)?\s*.*{LOOKED_FOR[anchor]}', PAGE)
    assert len(found) == 1
    assert len(re.findall(LOOKED_FOR[anchor], PAGE)) == 1


def test_what_happens_to_a_job_is_said_with_a_test_for_each_event() -> None:
    table = PAGE.partition("## What happens to a job")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| event")]
    assert len(rows) >= 18
    assert [row for row in rows if not TEST.search(row) and "standby" not in row] == []


def test_every_mechanism_that_can_be_taken_out_is_in_the_command_or_in_a_control_of_its_own() -> None:
    files = [file for folder in controls for file in Path(folder).glob("without_*.py")]
    others = {file.stem for file in files} - {line.without for line in LINES}
    tests = "".join(file.read_text() for file in (ROOT / "tests").glob("*/test_*.py"))
    assert [name for name in others if f'"{name}"' not in tests and f"tests.controls.{name} import" not in tests] == []


# Each in a child of its own: what is taken out stays out.
TAKE_OUT = """
import os, sys, traceback
import magik_sa.worker.worker
from tests import controls
for name in sys.argv[1:]:
    if not (child := os.fork()):
        try:
            controls.take_out(name)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"nothing was taken out: {name}")
"""


def test_each_mechanism_is_there_to_be_taken_out() -> None:
    names = sorted({line.without for line in LINES})
    done = subprocess.run([sys.executable, "-c", TAKE_OUT, *names], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1000:]
