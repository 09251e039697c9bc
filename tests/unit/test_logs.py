"""docs/logs.md has every event that the package logs, with its level and its fields, and no others."""

from __future__ import annotations

import ast
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magik_sa.logs import to_stderr
from magik_sa.outcome import Outcome
from magik_sa.run import QUIET
from tests.tools.events import HEAD, events, types

PACKAGE = Path(__file__).parents[2] / "magik_sa"
TREES = {
    path: ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
    if re.search(r"^from \.+logs import ", path.read_text(), re.MULTILINE)
}
FUNCTIONS = {node.name: node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
ENDS = [each for each in Outcome if each is not Outcome.PERFORMED]  # which is told of when its row has gone


def said(trees: list[ast.Module]) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Each call of `say` or `as_json`: the event, its level, and the fields that it can give."""
    for function in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id in ("say", "as_json"):
                level, event = call.args
                names = frozenset().union(*(fields(keyword, function) for keyword in call.keywords))
                if isinstance(event, ast.Constant):
                    yield str(event.value), ast.unparse(level).removeprefix("logging."), names
                else:
                    assert ast.unparse(event) == "f'job_{outcome.value}'"
                    yield from ((f"job_{each.value}", "INFO" if each in QUIET else "WARNING", names) for each in ENDS)


def fields(keyword: ast.keyword, function: ast.FunctionDef) -> set[str]:
    """The names that one keyword stands for: its own, or those of the dict that two stars lay out."""
    if keyword.arg:
        return {keyword.arg}
    if isinstance(keyword.value, ast.Call):
        return keys(FUNCTIONS[ast.unparse(keyword.value.func).split(".")[-1]])
    rest = function.args.kwarg
    if rest is not None and rest.arg == ast.unparse(keyword.value):
        return set().union(*(fields(each, function) for each in passed(function.name)))
    found = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.NamedExpr)
        and ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target) == ast.unparse(keyword.value)
    ]
    assert found, f"where do the fields of {ast.unparse(keyword.value)} come from?"
    return set().union(
        *(fields(ast.keyword(None, each), function) if isinstance(each, ast.Call) else keys(each) for each in found)
    )


def passed(name: str) -> Iterator[ast.keyword]:
    """What the package gives to a function of this name by keyword."""
    for call in (node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if ast.unparse(call.func).split(".")[-1] == name:
            yield from call.keywords


def keys(node: ast.AST) -> set[str]:
    """The keys of the dicts that are written out there."""
    dicts = [each for each in ast.walk(node) if isinstance(each, ast.Dict)]
    return {str(key.value) for each in dicts for key in each.keys if isinstance(key, ast.Constant)}


def test_the_page_has_every_event_with_its_level_and_its_fields_and_no_others() -> None:
    code: dict[str, Any] = {}
    for event, level, names in said([*TREES.values()]):
        code.setdefault(event, (level, set()))[1].update(names)
    assert code == {name: (event.level, {*event.fields}) for name, event in events().items()}


def test_the_page_has_a_type_for_every_field_and_for_no_others() -> None:
    assert set(types()) == set().union(*(event.fields for event in events().values()))
    assert not set(types()) & HEAD


@pytest.mark.parametrize(
    ("source", "event", "names"),
    [
        ("say(logging.INFO, 'seen', count=1)", "seen", {"count"}),
        ("told = {'a': 1}\n    say(logging.INFO, 'seen', count=1, **told)", "seen", {"count", "a"}),
        ("if more := in_force(b):\n        say(logging.INFO, 'seen', **more)", "seen", keys(FUNCTIONS["in_force"])),
        ("say(logging.INFO, 'seen', **described(tick))", "seen", {"schedule", "job_class", "tick", "late_s"}),
    ],
)
def test_the_fields_of_a_call_are_found(source: str, event: str, names: set[str]) -> None:
    assert [*said([ast.parse(f"def f():\n    {source}")])] == [(event, "INFO", frozenset(names))]


def test_every_run_of_a_job_says_which_job_how_long_and_how_it_ended() -> None:
    wanted = {"job_id", "job_class", "queue", "attempt", "duration_ms", "outcome"}
    assert all(events()[f"job_{each.value}"].always == wanted for each in ENDS)


def test_importing_adds_no_handler() -> None:
    loads = "import logging, magik_sa, magik_sa.worker.process as p; from magik_sa import Job, Worker; "
    asks = "l = logging.getLogger('magik_sa'); assert not l.hasHandlers() and l.level == 0 and l.propagate"
    assert subprocess.run([sys.executable, "-c", loads + asks], cwd=PACKAGE.parent).returncode == 0


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The package's logger, and after the test as it was."""
    logger = logging.getLogger("magik_sa")
    before = (logger.handlers[:], logger.level, logger.propagate)
    logger.handlers, logger.propagate = [], True
    yield logger
    logger.handlers, logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_without_a_format_the_configuration_of_the_application_stands(logger: logging.Logger) -> None:
    assert logging.getLogger().handlers  # pytest's own: somebody listens
    to_stderr(None)
    assert (logger.handlers, logger.propagate) == ([], True)


@pytest.mark.parametrize("level", [logging.NOTSET, logging.WARNING])
def test_a_format_that_was_asked_for_is_a_handler_of_our_logger_alone(logger: logging.Logger, level: int) -> None:
    roots = logging.getLogger().handlers[:]
    logger.setLevel(level)
    to_stderr("json")
    assert (len(logger.handlers), logger.propagate, logger.level) == (1, False, level or logging.INFO)
    assert logging.getLogger().handlers == roots


def test_a_handler_that_the_application_has_given_our_logger_outweighs_the_format(logger: logging.Logger) -> None:
    logger.addHandler(own := logging.NullHandler())
    to_stderr("json")
    assert (logger.handlers, logger.propagate) == ([own], True)
