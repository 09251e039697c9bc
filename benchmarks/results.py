"""The file of results: written after each round, so that a full run can be made in pieces."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
FULL: Final = HERE / "results.json"
QUICK: Final = HERE / "quick.json"  # of quick runs, not kept in the repository


class Results:
    """The rounds of each scenario, and who was measured."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        self.scenarios: dict[str, list[dict[str, Any]]] = self.kept.setdefault("scenarios", {})
        self.contenders: dict[str, Any] = self.kept.setdefault("contenders", {})

    def forget(self, scenario: str) -> None:
        """Begin anew with its rounds: those of another run are of another code, or of another load."""
        self.scenarios.pop(scenario, None)

    def add(self, scenario: str, cases: Mapping[str, Any]) -> None:
        """One round more, and write."""
        self.scenarios.setdefault(scenario, []).append({**machine(), "cases": cases})
        self._write()

    def introduce(self, name: str, info: dict[str, Any]) -> None:
        """What the report says of a contender."""
        self.contenders[name] = {key: info[key] for key in ("versions", "settings")}

    def rounds(self, scenario: str) -> list[dict[str, Any]]:
        """The cases of each round."""
        return [each["cases"] for each in self.scenarios.get(scenario, [])]

    def _write(self) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(self.kept, indent=1) + "\n")
        new.replace(self.file)


def machine() -> dict[str, Any]:
    """When, and on what."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": round(os.getloadavg()[0], 1),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
