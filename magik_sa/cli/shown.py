"""``magik jobs show``: all that one row says. Its arguments only when asked for: some of them may be secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import click

from ..acting import Shown, show
from ..boot import import_modules
from ..errors import BootRefused
from ..harmless import harmless
from ..job import declared
from .chosen import reaching
from .connect import URL
from .output import Answer, Command
from .status import resuming
from .unmet import paused

MASK: Final = "…"
LINES: Final = {
    "id": "id",
    "class": "job_class",
    "queue": "queue",
    "priority": "priority",
    "state": "state",
    "due": "run_at",
    "enqueued": "enqueued_at",
    "errors": "error_count",
    "failed": "failed_at",
    "expired": "expired_at",
    "finished": "finished_at",
    "version": "version",
}
QUEUE: Final = [*LINES].index("queue")
UNASKED: Final = "not shown; --args shows them"
UNTOLD: Final = "Which of the arguments are sensitive is known to the application's modules only: --module masks those."
HIDDEN: Final = f"Shown as {MASK}: what is sensitive, and what the class does not declare."
NOT_OURS: Final = "The modules do not declare this class, so none of its arguments are shown."


@click.command("show", cls=Command)
@click.argument("job_id", metavar="ID", type=click.UUID)
@click.option("--args", "arguments", is_flag=True, help="its arguments and its context, sensitive ones among them")
@click.option(
    "--module", "modules", multiple=True, help="where job classes are declared: sensitive arguments stay hidden"
)
@URL
def command(job_id: UUID, arguments: bool, modules: tuple[str, ...], database_url: str | None) -> Answer:
    """Show one job: its row, its last error, and with --args its arguments."""
    if findings := [*import_modules(modules)]:
        raise BootRefused(findings)
    asked = arguments or bool(modules)
    with reaching(database_url) as connection:
        with connection.begin():
            job = show(connection, job_id, arguments=asked)
        stopped = paused(connection, [job.queue]) if job else {}
    if job is None:
        return Answer("No such job: it has ended, was cancelled, or never was.", {"job": None}, 1)
    said = _said(job, asked, bool(modules))
    note = _note(said, bool(modules)) if asked else None
    told = [*_lines(said, note)]
    for queue, why in stopped.items():
        told[QUEUE] += harmless(f" ({why}: {resuming(queue)})")
    return Answer("\n".join(told), {"job": said, "note": note, "paused": bool(stopped)})


def _note(said: dict[str, Any], masked: bool) -> str:
    if not masked:
        return UNTOLD
    return NOT_OURS if said["arguments"] is None else HIDDEN


def _said(job: Shown, asked: bool, masked: bool) -> dict[str, Any]:
    """The row; arguments and context as JSON, or as their text where Python cannot hold it."""
    said = asdict(job)
    said["arguments"] = _masked(job) if masked else _read(job.arguments) if asked else None
    said["context"] = _read(job.context) if asked else None
    return said


def _masked(job: Shown) -> dict[str, Any] | None:
    """A name that the class does not declare may be a secret's. None where nobody knows the class."""
    stored, cls = _read(job.arguments), declared().get(job.job_class)
    if cls is None or not isinstance(stored, dict):
        return None
    open_ones = {name for name, argument in cls.__magik__.arguments.items() if not argument.sensitive}
    return {name: value if name in open_ones else MASK for name, value in stored.items()}


def _read(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text, parse_float=_exact)
    except (ValueError, RecursionError):
        return text


def _exact(digits: str) -> float:
    """Raises `ValueError` for a number that would be another one, or none at all in JSON."""
    number = float(digits)
    if Decimal(repr(number)) != Decimal(digits):
        raise ValueError
    return number


def _lines(said: dict[str, Any], note: str | None) -> Iterator[str]:
    for label, name in LINES.items():
        if said[name] is not None:
            yield f"{label:<10}{harmless(str(said[name]))}"
    yield from _values("arguments", said["arguments"])
    yield from _values("context", said["context"])
    yield note or f"arguments {UNASKED}"
    if said["last_error"]:
        yield from ("", *(harmless(line) for line in said["last_error"].splitlines()))


def _values(label: str, stored: Any) -> Iterator[str]:
    """A line for each, or what stands there instead of an object."""
    if isinstance(stored, dict):
        yield from (f"{label:<10}{harmless(f'{key}={_word(value)}')}" for key, value in stored.items())
    elif stored is not None:
        yield f"{label:<10}{harmless(str(stored))}"


def _word(value: Any) -> str:
    return value if value == MASK else json.dumps(value, ensure_ascii=False)
