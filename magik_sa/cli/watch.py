"""``--watch``: the same answer again and again, in place on a terminal, one block after the other elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NoReturn

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text
from sqlalchemy.exc import DBAPIError

from ..errors import BootError, MagikError
from ..failure import first_line
from .output import Answer, Command, refusal, refuse, say, seen_enough

EVERY: Final = 2.0  # seconds, where none are given
SHORTEST: Final = 0.1

Ask = Callable[[], Answer]
Show = Callable[[Answer], None]


class Watched(Command):
    """A command that can be watched, with the option ``--watch``. Each round asks anew, on a connection of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        told = f"ask again every so many seconds ({EVERY:g}), until Ctrl-C"
        kind = click.FloatRange(SHORTEST)
        self.params.append(click.Option(["--watch"], is_flag=False, flag_value=EVERY, type=kind, help=told))

    def invoke(self, ctx: click.Context) -> NoReturn:
        """Once; or until SIGINT, and then the exit code is 0. What the first round is refused for ends it, too."""
        if (seconds := ctx.params.pop("watch")) is None:
            super().invoke(ctx)
        as_json = ctx.params.pop("as_json")
        try:
            watch(partial(click.Command.invoke, self, ctx), seconds, as_json)
        except MagikError as error:
            refuse(error, as_json)
        except BrokenPipeError:
            seen_enough()
        except KeyboardInterrupt:
            pass
        sys.exit(0)


def watch(ask: Ask, seconds: float, as_json: bool) -> NoReturn:
    """Show what is answered, again and again. Raises what the first round raises; later a fault is shown as well."""
    answer = ask()
    with screen(as_json) as show:
        while True:
            show(answer)
            time.sleep(seconds)
            answer = _once_more(ask)


def _once_more(ask: Ask) -> Answer:
    try:
        return ask()
    except MagikError as error:
        return Answer(str(error), refusal(error))
    except DBAPIError as lost:
        gone = BootError("MAGIK_DATABASE_UNREACHABLE", f"The connection was lost: {first_line(lost)}.")
        return Answer(str(gone), refusal(gone))


@contextmanager
def screen(as_json: bool) -> Iterator[Show]:
    """Where it is shown: each answer in the place of the one before, or after it."""
    if as_json or not sys.stdout.isatty():
        yield lambda answer: say(answer if as_json else Answer(_dated(answer) + "\n", {}), as_json)
        return
    with Live(console=Console(highlight=False), auto_refresh=False, vertical_overflow="ellipsis") as live:
        yield lambda answer: live.update(Text.from_ansi(_dated(answer)), refresh=True)


def _dated(answer: Answer) -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\n{answer.said()}"
