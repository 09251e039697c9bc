"""How a process of the worker's ends: the codes, and one line on stderr that says why.

0  drained after SIGTERM or SIGINT (or stopped before it was ready)
2  refused to boot, or an option was wrong
3  the shutdown timeout passed, or a second signal came: running jobs were left to the database to free
4  the database was out of reach beyond the bound, or a part of the worker ended by itself
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from ..errors import MagikError
from ..logs import as_json

DRAINED: Final = 0
REFUSED: Final = 2
DEADLINE: Final = 3
LOST: Final = 4


def refuse(findings: Sequence[MagikError], in_json: bool = False) -> NoReturn:
    """One line on stderr for each thing that stands against working."""
    for each in findings:
        tell(refused(each) if in_json else str(each))
    end(REFUSED)


def refused(error: MagikError) -> str:
    """One of them as JSON."""
    return as_json(logging.CRITICAL, "refused", code=error.code, field=error.field, error=str(error))


def failed(said: str, code: str | None) -> str:
    """Why the worker ends, as JSON."""
    return as_json(logging.CRITICAL, "failed", code=code, error=said)


def end(code: int) -> NoReturn:
    """Leave at once: the sockets close, Postgres rolls back and unlocks. No thread of a job can hold the process up."""
    with contextlib.suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, full, or its reader is gone: the code says it all the same
            stream.flush()
    os._exit(code)


def tell(text: str) -> None:
    """To stderr. Where that takes nothing (a job may have closed it), the exit code says it all the same."""
    with contextlib.suppress(Exception):
        click.echo(text, err=True)
