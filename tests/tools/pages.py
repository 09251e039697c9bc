"""Documentation pages as programs: their code blocks run, in order, as a reader would run them.

The convention, which tests/README.md describes for writers:

* ``python`` blocks of a page run in order in one namespace of one fresh interpreter.
* ``console`` blocks: each line after ``$ `` is a command that must exit 0 (or with N after ``# exits with N``); other
  lines must turn up in its output in that order, ``...`` standing for anything.
* ``sql`` blocks are executed on the page's database.
* A block with ``title="app/jobs.py"`` after its language is written to that file instead.
* Other languages (text, toml, ini) are only shown, unless they have a title.
* ``<!-- background -->`` before a console block: its last command stays, is awaited until it says ``event=ready``, and
  has to end with 0 on SIGTERM at the end of the page.
* ``<!-- setup`` … ``-->`` is Python that runs and is not shown; ``<!-- file: shop/jobs.py`` … ``-->`` a file likewise.
* ``<!-- no-run: reason -->`` before a console or sql block: not run, and counted. Python always runs.
* ``<!-- database: empty -->`` anywhere: the page starts with an empty database instead of a migrated one.
* ``<!-- database: server -->``: with an empty database ``shop`` on a server of its own, as its superuser; the programs
  find that server under any name of a host.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from . import asking
from .installed import install
from .keeper import keeper
from .workers import READY, WorkerProcess, dsn_of

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w+-]*)(?P<rest>[^`\n]*)$")
_TITLE = re.compile(r'\btitle="([^"]+)"')
_MARK = re.compile(r"^ *<!-- (background|no-run: .+) -->$")
_HIDDEN = re.compile(r"^<!-- (?:setup|file: (?P<title>\S+))$")
_EXITS = re.compile(r"\s+# exits with (\d+)$")
_SHELL = re.compile(r"[|&;<>()$`\\*?\[\]#~{}!]")  # what means more than itself there
_GIVEN = re.compile(r"\w+=")
RUN = ("python", "console", "sql")
SHOWN = ("", "text", "toml", "ini", "json", "yaml", "mako", "diff", "dockerfile")


class PageError(AssertionError):
    """A block did not do what the page says; the text begins with the page's name and line."""


@dataclass(frozen=True)
class Block:
    """One fenced block: where it stands, what it is, and how it is to be treated."""

    page: str
    line: int  # of its first line of code
    language: str
    code: str
    title: str | None = None
    background: bool = False
    skipped: str | None = None

    @property
    def place(self) -> str:
        """Where to look when it fails."""
        return f"{self.page}:{self.line}"


# ---- reading ------------------------------------------------------------------------------------------------


def blocks(text: str, page: str) -> Iterator[Block]:
    """Every fenced block of a page. Raises `PageError` for a block that nobody would run without saying so."""
    lines = text.splitlines()
    at, mark = 0, ""
    while at < len(lines):
        line = lines[at]
        at += 1
        if fence := _FENCE.match(line):
            end = _closing(lines, at, f"{fence['indent']}```", f"{page}:{at}")
            code = "\n".join(row.removeprefix(fence["indent"]) for row in lines[at:end]) + "\n"
            yield _checked(_block(fence, mark, code, page, at + 1))
            at = end + 1
        elif hidden := _HIDDEN.match(line):
            end = _closing(lines, at, "-->", f"{page}:{at}")
            yield Block(page, at + 1, "python", "\n".join(lines[at:end]) + "\n", hidden["title"])
            at = end + 1
        mark = found[1] if (found := _MARK.match(line)) else mark if not line.strip() else ""


def _closing(lines: list[str], start: int, end: str, place: str) -> int:
    for at in range(start, len(lines)):
        if lines[at].rstrip() == end:
            return at
    raise PageError(f"{place}: this block is never closed")


def _block(fence: re.Match[str], mark: str, code: str, page: str, line: int) -> Block:
    title = _TITLE.search(fence["rest"])
    return Block(
        page=page,
        line=line,
        language=fence["language"],
        code=code,
        title=title[1] if title else None,
        background=mark == "background",
        skipped=mark.removeprefix("no-run: ") if mark.startswith("no-run: ") else None,
    )


def _checked(block: Block) -> Block:
    if block.title is None and block.language not in RUN + SHOWN:
        raise PageError(f"{block.place}: a block of {block.language!r} is not run; write console, python or sql")
    if block.skipped and block.language == "python":
        raise PageError(
            f"{block.place}: Python in the documentation runs; no-run is for commands that set up a machine"
        )
    if block.background and block.language != "console":
        raise PageError(f"{block.place}: only a console block stays in the background")
    return block


def wants_empty_database(text: str) -> bool:
    """Whether the page begins before ``alembic upgrade head``."""
    return "<!-- database: empty -->" in text


def wants_server(text: str) -> bool:
    """Whether the page makes roles, which belong to a whole server."""
    return "<!-- database: server -->" in text


# ---- running ------------------------------------------------------------------------------------------------


class Reader:
    """Runs the blocks of one page in a folder of its own: ``with Reader(database, folder) as r: r.run(block)``."""

    def __init__(self, database: str, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.database, self.folder = database, folder
        # Of a page's own pytest: a server that runs as another user has to get in, and every pytest that begins shuts
        # the folder that all of this user have in common.
        self._temporary = tempfile.TemporaryDirectory(prefix="magik-page-")
        keeper.note("folder", Path(self._temporary.name))
        own = {"PYTEST_DEBUG_TEMPROOT": self._temporary.name}
        self.env = {**surroundings(database, folder), **own, **(env or {})}
        self._python: Interpreter | None = None
        self._background: list[tuple[Block, WorkerProcess]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        try:
            self._end_background(kind is None)
        finally:
            for _block, process in self._background:
                process.close()
            if self._python is not None:
                self._python.close()
            keeper.strike("folder", Path(self._temporary.name))
            self._temporary.cleanup()

    def run(self, block: Block) -> None:
        """Do what the block says. Raises `PageError`."""
        if block.title is not None:
            self._write(block, block.title)
        elif block.skipped is None and block.background:
            self._start(block)
        elif block.skipped is None and block.language in RUN:
            {"python": self._execute, "console": self._commands, "sql": self._query}[block.language](block)

    def _write(self, block: Block, title: str) -> None:
        place = (self.folder / title).resolve()
        if not place.is_relative_to(self.folder.resolve()):
            raise PageError(f"{block.place}: {title} leaves the page's folder")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(block.code)

    def _execute(self, block: Block) -> None:
        if self._python is None:
            self._python = Interpreter(self.folder, self.env)
        if error := self._python.run(block):
            raise PageError(f"{block.place}:\n{error}")

    def _query(self, block: Block) -> None:
        with psycopg.connect(dsn_of(self.database), autocommit=True) as connection:
            try:
                connection.execute(block.code.encode())
            except psycopg.Error as error:
                raise PageError(f"{block.place}: {error}") from error

    def _commands(self, block: Block) -> None:
        self._run_each(block, commands(block))

    def _run_each(self, block: Block, those: Iterable[tuple[int, str, int, list[str]]]) -> None:
        for line, command, wanted, output in those:
            place = f"{block.page}:{line}: {command}"
            words, env = in_python(command, self.env) or (["bash", "-c", command], self.env)
            done = asking.run(words, cwd=self.folder, env=env, together=True)
            said = done.stdout.decode()
            if done.returncode != wanted:
                raise PageError(f"{place}\nexited with {done.returncode}, not {wanted}:\n{said}")
            if missing := first_missing(output, said):
                raise PageError(f"{place}\ndid not print {missing!r} there, but:\n{said}")

    def _start(self, block: Block) -> None:
        *before, (_, command, _, output) = commands(block)
        self._run_each(block, before)
        words, env = in_python(command, self.env) or (["bash", "-c", f"exec {command}"], self.env)
        process = WorkerProcess(self.database, cwd=self.folder, env=env, command=words)
        self._background.append((block, process.start()))
        process.wait_log(READY.pattern)
        for shown in output:
            process.wait_log(pattern(shown))

    def _end_background(self, expected: bool) -> None:
        for block, process in self._background:
            code = process.terminate()
            if expected and code != 0:
                raise PageError(f"{block.place}: ended with {code}:\n{process.stderr()}")


def in_python(command: str, env: Mapping[str, str]) -> tuple[list[str], dict[str, str]] | None:
    """What a shell would start for this, and in which environment, if that is all and it is a program in our Python."""
    if _SHELL.search(command):
        return None
    words = shlex.split(command)
    given = list(itertools.takewhile(_GIVEN.match, words))
    program, *arguments = words[len(given) :] or [""]
    python = python_of(Path(shutil.which(program, path=env["PATH"]) or os.devnull))
    return ([*python, *arguments], {**env, **dict(each.split("=", 1) for each in given)}) if python else None


def python_of(program: Path) -> list[str]:
    """How our Python is told to be this program; nothing if it is none of its own."""
    ours = Path(sys.executable).parent
    if program.parent == ours and program.name in ("python", "python3"):
        return [sys.executable]
    with program.open("rb") as file:
        first = file.readline().decode(errors="replace")
    return [sys.executable, str(program)] if re.match(rf"#!{re.escape(str(ours))}/python[\d.]*$", first) else []


def commands(block: Block) -> Iterator[tuple[int, str, int, list[str]]]:
    """The commands of a console block: line, text, expected exit code, expected lines of output."""
    found: list[tuple[int, str, int, list[str]]] = []
    continued = False
    for number, line in enumerate(block.code.splitlines(), block.line):
        if continued:
            at, command, code, output = found.pop()
            found.append((at, f"{command[:-1]}{line.strip()}", code, output))
        elif line.startswith("$ "):
            exits = _EXITS.search(line)
            found.append((number, _EXITS.sub("", line[2:]), int(exits[1]) if exits else 0, []))
        elif not found:
            raise PageError(f"{block.page}:{number}: output before the first command")
        elif line.strip():
            found[-1][3].append(line.rstrip())
        continued = bool(found) and found[-1][1].endswith("\\") and not found[-1][3]
    yield from found


def pattern(line: str) -> str:
    """A line of expected output as a regular expression: ``...`` is anything, runs of blanks are one."""
    parts = ["".join(r"\s+" if part.isspace() else re.escape(part) for part in re.split(r"(\s+)", text))
             for text in line.strip().split("...")]  # fmt: skip
    return ".*".join(parts)


def first_missing(expected: list[str], output: str) -> str | None:
    """The first expected line that does not turn up in what is left of the output after the one before."""
    left = iter(output.splitlines())
    for line in expected:
        if line.strip() != "..." and not any(re.search(pattern(line), printed) for printed in left):
            return line
    return None


def surroundings(database: str, folder: Path) -> dict[str, str]:
    """The environment of a page's commands: its folder importable, this interpreter's programs first."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAGIK_", "PG", "PYTEST_"))}
    there = install(folder / ".installed")
    places = os.pathsep.join([str(folder), there["PYTHONPATH"]])
    return env | {"MAGIK_DATABASE_URL": database, "PATH": there["PATH"], "PYTHONPATH": places, "COLUMNS": "120"}


class Interpreter:
    """A fresh Python that executes one block after the other in one namespace."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        (told, tell), (listen, answer) = os.pipe(), os.pipe()
        self._tell, self._listen = os.fdopen(tell, "w"), os.fdopen(listen)
        command = [sys.executable, "-W", "error", "-c", _LOOP]
        self._process = asking.start(command, cwd=folder, env=env, stdin=told, stdout=answer, stderr=2)
        for theirs in (told, answer):
            os.close(theirs)

    def run(self, block: Block) -> str | None:
        """Execute; the traceback if it raised, with the page's own line numbers."""
        print(json.dumps([block.page, block.line, block.code]), file=self._tell, flush=True)
        answer = self._listen.readline()
        if not answer:
            return f"the interpreter ended with {self._process.wait(10)}"
        error: str | None = json.loads(answer)
        return error

    def close(self) -> None:
        """End the interpreter."""
        with contextlib.suppress(BrokenPipeError):
            self._tell.close()
        self._listen.close()
        self._process.wait(30)


_LOOP = """
import json, os, sys, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the page prints is not an answer
sys.path.insert(0, "")
space = {"__name__": "__main__"}
for line in sys.stdin:
    page, at, code = json.loads(line)
    try:
        exec(compile("\\n" * (at - 1) + code, page, "exec"), space)
        error = None
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps(error), file=answers, flush=True)
answers.close()
"""
