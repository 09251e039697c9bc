"""What a command answers, and how a fault is said.

An answer goes to stdout, as text for people or, with ``--json``, as one JSON document. A fault is one line on stderr
with its code, here as everywhere; with ``--json`` stdout has ``{"errors": [...]}``. Exit code 2 then.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any, Final, NoReturn

import click

from ..errors import BootRefused, MagikError

REFUSED: Final = 2


@dataclass(frozen=True)
class Answer:
    """The same twice: `text` for people, `data` for programs. `code` is the exit code.

    A long text is made only where it is wanted.
    """

    text: str | Callable[[], str]
    data: Mapping[str, Any]
    code: int = 0

    def said(self) -> str:
        """For people."""
        return self.text if isinstance(self.text, str) else self.text()


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
        try:
            say(answer, as_json)
        except BrokenPipeError:
            seen_enough()
        except OSError as error:
            seen_enough()
            note(f"the answer could not be written: {error.strerror}.")
            sys.exit(REFUSED)
        sys.exit(answer.code)


def seen_enough() -> None:
    """Who reads is gone: what is left to be flushed goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(answer: Answer, as_json: bool) -> None:
    """Print it."""
    if isinstance(sys.stdout, TextIOWrapper):  # a name that the terminal's encoding lacks is no reason to end
        sys.stdout.reconfigure(errors="backslashreplace")
    click.echo(json.dumps(answer.data, default=str) if as_json else answer.said())


def refuse(error: MagikError, as_json: bool = False) -> NoReturn:
    """Say what stands against it and leave."""
    click.echo(str(error), err=True)
    if as_json:
        click.echo(json.dumps(refusal(error), default=str))
    sys.exit(REFUSED)


def refusal(error: MagikError) -> dict[str, Any]:
    """The same as data."""
    return {"errors": [_told(finding) for finding in findings(error)]}


def findings(error: MagikError) -> list[MagikError]:
    """Every fault that an error holds: a refused boot has several."""
    return error.findings if isinstance(error, BootRefused) else [error]


def note(text: str) -> None:
    """Something to know while a command goes on."""
    click.echo(f"magik_sa: {text}", err=True)


def _told(error: MagikError) -> dict[str, str | None]:
    names = ("code", "what", "remedy", "field", "docs")
    return {name: getattr(error, name) for name in names}
