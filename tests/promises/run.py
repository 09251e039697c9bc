"""Runs tests in a pytest of their own, as they are or without something, and tells what each of them said."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree

from tests.controls import VARIABLE
from tests.tools.waiting import PATIENCE
from tests.tools.workers import ROOT

from .table import Line

LONGEST: Final = 30.0  # seconds for an `until`, in both runs: what passes within it is not red for want of time
QUICKLY: Final = {PATIENCE: str(LONGEST), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
PLUGINS: Final = ("-p", "pytest_postgresql.plugin", "-p", "pytest_timeout", "-p", "no:cacheprovider")
OPTIONS: Final = ("--tb=short", "--override-ini=junit_logging=no", *PLUGINS)


class Said(NamedTuple):
    """How one test ended: `failure` is what its own assertion said, `error` what kept it from its end."""

    node: str
    failure: str | None
    error: str | None
    skipped: bool


class Verdict(NamedTuple):
    """A line, and how its test ended with the mechanism and without."""

    line: Line
    with_it: str
    without_it: str
    right: bool


def verdicts(lines: Iterable[Line], server: str, at_once: int = 1) -> Iterator[Verdict]:
    """Run all tests as they are, one after the other, then each line's without its mechanism, `at_once` at a time.

    All of them use the server of this URL, as its superuser.
    """
    lines, env = list(lines), {"MAGIK_TEST_DATABASE_URL": server}
    green = said_by(sorted({line.test for line in lines}), env)

    def without_it(line: Line) -> Verdict:
        began = time.monotonic()
        red = said_by([line.test], {**env, VARIABLE: line.without})
        return verdict(line, green, red, time.monotonic() - began)

    with ThreadPoolExecutor(at_once) as threads:
        yield from threads.map(without_it, lines)


def verdict(line: Line, green: list[Said], red: list[Said], seconds: float) -> Verdict:
    """Green with it, and red for the right reason without it?"""
    mine = [said for said in green if is_of(line.test, said)]
    passed = bool(mine) and all(said.failure is said.error is None and not said.skipped for said in mine)
    why = re.search(line.fails, "\n".join(said.failure or "" for said in red), re.DOTALL)
    return Verdict(
        line,
        "green" if passed else f"NOT GREEN: {told(mine)}",
        f"red in {seconds:.0f} s: {' '.join(why[0].split())[:100]}" if why else f"NOT RED AS IT SHOULD BE: {told(red)}",
        passed and why is not None,
    )


def is_of(node: str, said: Said) -> bool:
    """Is it this test, or this test with one of its parameters?"""
    return node in (said.node, said.node.partition("[")[0])


def told(said: list[Said]) -> str:
    """What went otherwise."""
    if not said:
        return "nothing was run"
    return "; ".join(each.failure or each.error or ("skipped" if each.skipped else "passed") for each in said)[-600:]


def said_by(nodes: list[str], env: Mapping[str, str]) -> list[Said]:
    """Run these tests in a process of their own."""
    with tempfile.TemporaryDirectory(prefix="magik-promises-") as folder:
        report = Path(folder, "report.xml")
        first = ["--exitfirst"] if VARIABLE in env else []
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, *first, f"--junitxml={report}", *nodes],
            cwd=ROOT,
            env={**os.environ, **QUICKLY, "PYTHONPATH": python_path(), **env},
            capture_output=True,
            text=True,
            check=False,
        )
        said = list(read(report)) if report.exists() else []
        unsaid = [node for node in nodes if not any(is_of(node, each) for each in said)]
        return said + [Said(node, None, ran.stdout + ran.stderr, skipped=False) for node in unsaid]


def python_path() -> str:
    """This checkout comes first, whatever is installed."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def read(report: Path) -> Iterator[Said]:
    """The tests of a report, by their node ids."""
    for case in ElementTree.parse(report).iter("testcase"):
        node = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        texts = {child.tag: f"{child.get('message')}\n{child.text}" for child in case}
        yield Said(node, texts.get("failure"), texts.get("error"), "skipped" in texts)
