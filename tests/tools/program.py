"""The program `magik` as a process: what it printed, and the exit code that was expected of it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from . import asking
from .workers import ROOT, environment

PROGRAM = (sys.executable, "-W", "error", "-m", "magik_sa.cli")
NOTHING: Mapping[str, str] = MappingProxyType({})
REFUSED = 2


def hear_sigint() -> None:
    """Whoever is started in the background ignores it, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(
    database: str,
    *words: str,
    env: Mapping[str, str] = NOTHING,
    cwd: Path = ROOT,
    encoding: str = "utf-8",
    fresh: bool = False,
) -> tuple[int, str, str]:
    """``magik …`` with the database in its environment; the exit code, stdout and stderr. `fresh`: see `asking`."""
    done = asking.run([*PROGRAM, *words], env=environment(database, None, env), cwd=cwd, fresh=fresh)
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
