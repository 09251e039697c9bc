"""What is installed is what stands in the repository, with what a user of the package needs beside the code."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import magik_sa

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def installed() -> Distribution:
    """The installed package, as a wheel: an editable one is the repository itself."""
    try:
        found = distribution("magik_sa")
    except PackageNotFoundError:
        pytest.skip("magik_sa is not installed here; tox installs it")
    if not any(str(file) == "magik_sa/errors.py" for file in found.files or []):
        pytest.skip("magik_sa is installed as editable here; tox installs a wheel")
    return found


def test_the_wheel_holds_the_whole_package_and_nothing_else(installed: Distribution) -> None:
    there = {str(file) for file in installed.files or [] if "__pycache__" not in str(file)}
    folders = {file.split("/")[0] for file in there if not file.startswith("..")}
    here = {path.relative_to(ROOT).as_posix() for path in (ROOT / "magik_sa").rglob("*.py")}
    assert here | {"magik_sa/py.typed"} <= there
    assert folders == {"magik_sa", f"magik_sa-{magik_sa.__version__}.dist-info"}
    assert any(file.endswith("licenses/LICENSE") for file in there)


def test_the_entry_points_can_be_loaded(installed: Distribution) -> None:
    points = [point for point in installed.entry_points if point.value.startswith("magik_sa")]
    assert {point.name for point in points} >= set(PROJECT.get("scripts", {}))
    for point in points:
        point.load()


def test_the_version_is_written_once_and_the_same_everywhere() -> None:
    assert magik_sa.__version__ == PROJECT["version"]
    assert f"\n## {magik_sa.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_only_the_pythons_that_the_suite_runs_on_are_let_in() -> None:
    """Pip refuses any other; time limits rest on the interpreter's own ways."""
    named = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)}
    admitted = SpecifierSet(PROJECT["requires-python"])
    assert named == {f"3.{minor}" for minor in range(40) if f"3.{minor}.5" in admitted}
    for minor in sorted(named):
        assert minor.replace(".", "") in (ROOT / "tox.ini").read_text()


def test_no_word_of_a_registry_s_address_stands_in_the_repository() -> None:
    hosts = re.compile(r"\b(files\.pythonhosted|pypi|test\.pypi|registry\.npmjs|deb\.debian)\.org\b")
    places = [
        ROOT / ".ci" / "run",
        *ROOT.glob("*.*"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "magik_sa").rglob("*.py"),
    ]
    assert [path.name for path in places if path.is_file() and hosts.search(path.read_text())] == []
