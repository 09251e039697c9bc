"""What docs/logs.md says of each event and of each field."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "logs.md"
TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float)}
HEAD = {"time", "level", "logger", "event"}
SUPERVISED = {"pid"}  # what each line of one of several processes may have besides


@dataclass(frozen=True)
class Event:
    """A row of the page: its level, the fields that each line has, and those that it may have."""

    level: str
    always: frozenset[str]
    sometimes: frozenset[str]

    @property
    def fields(self) -> frozenset[str]:
        return self.always | self.sometimes


def events() -> dict[str, Event]:
    """Every event of the page."""
    rows = re.findall(r"^\| `(\w+)` \| ([A-Z]+) \|(.*?)\| .+ \|$", PAGE.read_text(), re.MULTILINE)
    return {name: _event(level, fields) for name, level, fields in rows}


def _event(level: str, fields: str) -> Event:
    sometimes = frozenset(re.findall(r"\(`(\w+)`\)", fields))
    return Event(level, frozenset(re.findall(r"`(\w+)`", fields)) - sometimes, sometimes)


def types() -> dict[str, tuple[type, ...]]:
    """The type in JSON of every field of the page."""
    rows = re.findall(r"^\| `(\w+)` \| (string|integer|number) \|", PAGE.read_text(), re.MULTILINE)
    return {name: TYPES[kind] for name, kind in rows}


def faults(line: dict[str, Any]) -> list[str]:
    """What a line, as JSON gives it, has that the page does not say of it."""
    event, known = events()[line["event"]], types()
    found = [f"no {name}" for name in (event.always | HEAD) - line.keys()]
    found += [f"{name}?" for name in line.keys() - event.fields - HEAD - SUPERVISED]
    found += [f"{name}={line[name]!r}" for name in event.fields & line.keys() if type(line[name]) not in known[name]]
    return found + ([] if line["level"] == event.level else [f"level {line['level']}"])
