"""The program `magik` as a process: what it printed, and the exit code that was expected of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .workers import ROOT, environment

PROGRAM = (sys.executable, "-W", "error", "-m", "magik_sa.cli")
NOTHING: Mapping[str, str] = MappingProxyType({})
REFUSED = 2


def run(
    database: str, *words: str, env: Mapping[str, str] = NOTHING, cwd: Path = ROOT, encoding: str = "utf-8"
) -> tuple[int, str, str]:
    """``magik …`` with the database in its environment; the exit code, stdout and stderr."""
    done = subprocess.run(
        [*PROGRAM, *words],
        env=environment(database, None, env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.decode(encoding), done.stderr.decode(encoding)


def magik(database: str, *words: str, code: int = 0, **how: Any) -> str:
    """What it printed; where it was refused, the line on stderr."""
    ended, out, err = run(database, *words, **how)
    assert ended == code, (ended, out, err)
    assert code == REFUSED or not err, err
    return err if code == REFUSED else out


def answer(database: str, *words: str, code: int = 0, **how: Any) -> Any:
    """The document that ``--json`` prints."""
    ended, out, err = run(database, *words, "--json", **how)
    assert ended == code, (ended, out, err)
    return json.loads(out)
