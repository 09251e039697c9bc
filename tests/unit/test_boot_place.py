"""A declaration error that boot meets names the module, the file and the line that made it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from magik_sa import MagikError
from magik_sa.boot import import_modules
from magik_sa.errors import REMEDIES
from magik_sa.job import _declared

HEAD = "from magik_sa import Job, Retries, Schedule, policy\n"
FAULTS = {
    "a schedule": ("class Tick(Job, policy='system'):\n    schedule = Schedule(\n        cron='0 3 * * *')\n", 3),
    "a class": ("class Tick(Job, polcy='system'):\n    def perform(self, session): ...\n", 2),
    "retries": ("\n\nSLOW = Retries(timeout=30)\n", 4),
    "a policy": ("@policy('boot_place')\nasync def may(job, session): return True\n", 2),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    modules, known = set(sys.modules), dict(_declared)
    yield tmp_path
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    assert known == _declared


def found(name: str) -> MagikError:
    (error,) = import_modules((name,))
    assert "\n" not in str(error)
    return error


@pytest.mark.parametrize(("body", "line"), FAULTS.values(), ids=FAULTS)
def test_a_declaration_error_names_module_file_and_line(folder: Path, body: str, line: int) -> None:
    (folder / "misplaced.py").write_text(HEAD + body)
    error = found("misplaced")
    assert error.what.startswith(f"In misplaced ({folder / 'misplaced.py'}:{line}): ")
    assert error.code in str(error)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import json\njson.loads('{')\n", ", in misplaced ({file}:2)."),
        ("def broken(:\n", ", in {file}:1."),
        ("import no_such_module\n", ", in misplaced ({file}:1)."),
    ],
)
def test_whatever_an_import_raises_is_told_with_its_line(folder: Path, body: str, said: str) -> None:
    (file := folder / "misplaced.py").write_text(body)
    error = found("misplaced")
    assert error.code == "MAGIK_MODULE_IMPORT_FAILED"
    assert error.what.endswith(said.format(file=file))


def test_of_a_module_that_is_not_there_no_line_is_told(folder: Path) -> None:
    assert found("no_such_module").what.endswith("No module named 'no_such_module'.")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("no_such_module", ""),
        ("no_such_package.jobs", ""),
        ("no_such/jobs.py", "Name it as Python does: no_such.jobs. "),
        ("./no_such.py", "Name it as Python does: no_such. "),
    ],
)
def test_of_a_module_that_is_not_there_it_is_told_where_it_was_looked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, named: str
) -> None:
    monkeypatch.chdir(folder)
    remedy = found(name).remedy
    assert remedy.startswith(f"{named}It was looked for below the working folder, {folder}, and on PYTHONPATH: ")


def test_of_one_that_is_there_and_imports_what_is_not_the_remedy_is_the_ordinary_one(folder: Path) -> None:
    (folder / "misplaced.py").write_text("import no_such_module\n")
    assert found("misplaced").remedy == REMEDIES["MAGIK_MODULE_IMPORT_FAILED"]
    assert "PYTHONPATH" in REMEDIES["MAGIK_MODULE_IMPORT_FAILED"]


def test_it_is_the_module_at_fault_that_is_named_not_the_one_that_imports_it(folder: Path) -> None:
    (folder / "inner.py").write_text(HEAD + FAULTS["retries"][0])
    (folder / "outer.py").write_text("import inner\n")
    assert found("outer").what.startswith("In inner (")
