"""What a command answers, and how a fault is said.

An answer goes to stdout, as text for people or, with ``--json``, as one JSON document. A fault is one line on stderr
with its code, here as everywhere; with ``--json`` stdout has ``{"errors": [...]}``. Exit code 2 then.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any, Final, NoReturn

import click

from ..errors import BootRefused, MagikError

REFUSED: Final = 2


@dataclass(frozen=True)
class Answer:
    """The same twice: `text` for people, `data` for programs. `code` is the exit code."""

    text: str
    data: Mapping[str, Any]
    code: int = 0


class Command(click.Command):
    """A function that returns an `Answer` or raises a `MagikError`, with the option ``--json``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params.append(click.Option(["--json", "as_json"], is_flag=True, help="answer with one JSON document"))

    def invoke(self, ctx: click.Context) -> NoReturn:
        """Run it, print the answer and leave."""
        as_json = ctx.params.pop("as_json")
        try:
            answer: Answer = super().invoke(ctx)
        except MagikError as error:
            refuse(error, as_json)
        if isinstance(sys.stdout, TextIOWrapper):  # a name that the terminal's encoding lacks is no reason to end
            sys.stdout.reconfigure(errors="backslashreplace")
        click.echo(json.dumps(answer.data, default=str) if as_json else answer.text)
        sys.exit(answer.code)


def refuse(error: MagikError, as_json: bool = False) -> NoReturn:
    """Say what stands against it and leave."""
    click.echo(str(error), err=True)
    if as_json:
        click.echo(json.dumps({"errors": [_told(finding) for finding in findings(error)]}, default=str))
    sys.exit(REFUSED)


def findings(error: MagikError) -> list[MagikError]:
    """Every fault that an error holds: a refused boot has several."""
    return error.findings if isinstance(error, BootRefused) else [error]


def note(text: str) -> None:
    """Something to know while a command goes on."""
    click.echo(f"magik_sa: {text}", err=True)


def _told(error: MagikError) -> dict[str, str | None]:
    names = ("code", "what", "remedy", "field", "docs")
    return {name: getattr(error, name) for name in names}
