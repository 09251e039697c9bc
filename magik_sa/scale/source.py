"""The application's source, as far as it can be read, and where something stands in it."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from ..job import Job

IGNORE: Final = re.compile(r"#\s*magik:\s*ignore\[([\w,\s]+)\]")


@dataclass(frozen=True)
class Warned:
    """One shape that was found. `where` is file and line, `said` what is there, `why` what it costs and what to do."""

    shape: str
    where: str
    job: str
    said: str
    why: str
    silenced: bool = False


@dataclass(frozen=True)
class Body:
    """A function of the application: its tree, with the line numbers of its file, and what its names lead to."""

    job: str
    scope: Mapping[str, Any]
    locals: frozenset[str]
    tree: ast.FunctionDef
    file: str
    lines: Mapping[int, str]

    @property
    def session(self) -> str | None:
        """What it calls its Session, if it takes one: perform's second parameter."""
        names = [argument.arg for argument in [*self.tree.args.posonlyargs, *self.tree.args.args]]
        return names[1] if len(names) > 1 else None

    def warned(self, shape: str, node: ast.stmt | ast.expr, said: str, why: str) -> Warned:
        """A warning at that node."""
        silenced = is_silenced(shape, self.lines.get(node.lineno, ""))
        return Warned(shape, f"{self.file}:{node.lineno}", self.job, said, why, silenced)


def is_silenced(shape: str, line: str) -> bool:
    """Whether a comment on this line says that it is meant."""
    found = IGNORE.search(line)
    return found is not None and shape in [name.strip() for name in found[1].split(",")]


def bodies(jobs: Mapping[str, type[Job]]) -> Iterator[Body]:
    """The `perform` of each class; one that several inherit once. What cannot be read is passed over."""
    seen: set[Any] = set()
    for name, cls in jobs.items():
        perform = inspect.unwrap(cls.perform)
        if perform not in seen and (body := body_of(perform, name)):
            yield body
        seen.add(perform)


def body_of(function: Callable[..., Any], job: str) -> Body | None:
    """A function as it is written; None where it was not written in a file, or not as a function."""
    if not isinstance(function, FunctionType):
        return None
    found = _read(function)
    if found is None or not isinstance(found[0], ast.FunctionDef):
        return None
    tree, lines = found
    assert isinstance(tree, ast.FunctionDef)
    code = function.__code__
    return Body(job, function.__globals__, frozenset(code.co_varnames), tree, shown(code.co_filename), lines)


def class_of(cls: type) -> tuple[str, ast.ClassDef, Mapping[int, str]] | None:
    """The file of a class, its tree and its lines; None where it cannot be read."""
    found = _read(cls)
    if found is None or not isinstance(found[0], ast.ClassDef):
        return None
    return shown(inspect.getfile(cls)), found[0], found[1]


def _read(thing: Any) -> tuple[ast.stmt, Mapping[int, str]] | None:
    try:
        lines, first = inspect.getsourcelines(thing)
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError, ValueError, IndexError):
        return None
    ast.increment_lineno(tree, max(first, 1) - 1)
    return tree, dict(enumerate(lines, max(first, 1)))


def shown(file: str) -> str:
    """Below the working folder as from there: as a linter writes it."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file
