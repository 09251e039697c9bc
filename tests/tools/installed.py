"""What an installation adds to the code: entry points, and the program `magik`. A checkout has neither."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_PROGRAM = """\
#!{python}
from {module} import {function}

if __name__ == "__main__":
    {function}()
"""


def install(folder: Path) -> dict[str, str]:
    """Make a folder with the metadata and the programs that pyproject.toml declares, as pip would from this checkout.

    Returns the PYTHONPATH and the PATH that lead to them. Where the package is installed, its metadata are the same.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    _metadata(folder / f"{project['name']}-{project['version']}.dist-info", project)
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    for name, target in project["scripts"].items():
        _program(programs / name, target)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "PATH": path}


def _metadata(folder: Path, project: Mapping[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = {"console_scripts": project["scripts"], **dict(project["entry-points"])}  # type: ignore[call-overload]
    lines = [line for group, points in groups.items() for line in (f"[{group}]", *_points(points))]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


def _points(points: Mapping[str, str]) -> list[str]:
    return [f"{name} = {target}" for name, target in points.items()]


def _program(file: Path, target: str) -> None:
    module, function = target.split(":")
    file.write_text(_PROGRAM.format(python=sys.executable, module=module, function=function))
    file.chmod(0o755)
