"""The pictures of the documentation are what the program writes to a terminal."""

from __future__ import annotations

import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from tests.tools.workers import ROOT, environment

SHOWN = {
    "status": ("$ magik jobs status", "paused by ada", "no live worker works this queue"),
    "list": ("$ magik jobs list", "TimeoutError:", "$ magik workers"),
    "doctor": ("(import script, role", "SELECT pg_terminate_backend(", "schema_drift: nothing is missing"),
}


def text_of(picture: Path) -> str:
    return unescape(picture.read_text("utf-8")).replace("\xa0", " ")


@pytest.mark.slow
def test_the_screens_are_taken_from_the_program(empty_database: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.screens", "--to", str(tmp_path), "--database-url", empty_database]
    subprocess.run(command, cwd=ROOT, env=environment(empty_database, None, {}), timeout=100, check=True)
    for name, words in SHOWN.items():
        for place in (tmp_path, ROOT / "docs" / "screens"):
            assert all(word in text_of(place / f"{name}.svg") for word in words), (place, name)
