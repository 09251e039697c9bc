"""How tables look: columns on a terminal as wide as it is, and plain lines where a program reads them.

What stands in them comes from the database and may hold anything: control characters and markup are shown, not
obeyed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..display import harmless

UNLIMITED: Final = 10_000  # columns; a pipe has no width
UNKNOWN: Final = "unknown"


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[str] = ()) -> str:
    """A table as text; those of `numbers` are set to the right. None is shown as "unknown"."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        drawn.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(cell(value) for value in row))
    return rendered(drawn)


def cell(value: Any) -> Text:
    """One value; nothing in it is read as markup."""
    return Text(UNKNOWN, "yellow") if value is None else Text(harmless(str(value)))


def rendered_text(text: str, style: str) -> str:
    """Coloured on a terminal, and nothing but the text elsewhere."""
    return rendered(Text(text, style), strip=False)


def rendered(drawn: Any, *, strip: bool = True) -> str:
    """Drawn for where stdout goes: colours and a width only on a terminal."""
    terminal, out = sys.stdout.isatty(), StringIO()
    console = Console(
        file=out, force_terminal=terminal, width=None if terminal else UNLIMITED, highlight=False, emoji=False
    )
    console.print(drawn, end="" if isinstance(drawn, Text) else "\n")
    return "\n".join(line.rstrip() if strip else line for line in out.getvalue().splitlines())
