"""How tables look: columns on a terminal as wide as it is, and plain lines where a program reads them.

What stands in them comes from the database and may hold anything: control characters and markup are shown, not
obeyed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from io import StringIO
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..harmless import harmless

UNLIMITED: Final = 10_000  # columns; a pipe has no width
NARROWEST: Final = 72  # a terminal that is narrower breaks the lines itself; columns of no width at all tell nothing
GAP: Final = 2
UNKNOWN: Final = "unknown"
NOTHING: Final = "-"
WHOLE: Final = ("id", "job")  # what is to be copied from a terminal is never cut
FREE: Final = {"last error": 16, "because": 16, "queues": 10, "waits for": 9, "state": 9}  # folded, down to this width
OVER: Final = ("expired at", "finished at", "due, or over since")
DROPPED: Final = (
    "last error",
    "waits for",
    "ended/min",
    "errored",
    "errors",
    "session",
    "due",
    *OVER,
    "since",
)  # the first first
TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)Z")


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[str] = (), below: str | None = None
) -> str:
    """A table as text; those of `numbers` are set to the right. None is shown as "unknown".

    On a terminal that is too narrow, words stay whole: free text is folded, columns are left out and named. The column
    `below` then stands beside the first one in a table of its own, where there is something in it.
    """
    if not sys.stdout.isatty():
        return _plain(
            [columns, *([cell(value).plain for value in row] for row in rows)], [*map(numbers.__contains__, columns)]
        )
    room = max(NARROWEST, Console().width)
    rows = [*rows]
    drawn, missing = laid_out(columns, rows, numbers, room)
    apart = [name for name in missing if name == below and any(row[columns.index(name)] != NOTHING for row in rows)]
    left = [name for name in missing if name not in apart]
    note = f"\n(too narrow for: {', '.join(left)}; a pipe and --json have all)" if left else ""
    return "\n\n".join([rendered(drawn) + note, *(_below(columns, rows, name, room) for name in apart)])


def _below(columns: Sequence[str], rows: Sequence[Sequence[Any]], name: str, room: int) -> str:
    """One column beside the first."""
    place = columns.index(name)
    drawn, _ = laid_out((columns[0], name), [(row[0], row[place]) for row in rows if row[place] != NOTHING], (), room)
    return rendered(drawn)


def laid_out(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], numbers: Sequence[str], room: int
) -> tuple[Table, list[str]]:
    """The table in so many columns of a terminal, and what had to be left out."""
    cells = [[cell(short(value) if room < UNLIMITED else value) for value in row] for row in rows]
    natural = {name: max([len(name), *(row[n].cell_len for row in cells)]) for n, name in enumerate(columns)}
    widths = fitted(natural, room)
    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for name, width in widths.items():
        free, justify = name in FREE, "right" if name in numbers else "left"
        overflow = "fold" if free else "ellipsis"
        drawn.add_column(name, justify=justify, overflow=overflow, no_wrap=not free, width=width)  # type: ignore[arg-type]
    for row in cells:
        drawn.add_row(*(value for value, name in zip(row, columns, strict=True) if name in widths))
    return drawn, [name for name in columns if name not in widths]


def fitted(natural: Mapping[str, int], room: int) -> dict[str, int]:
    """A width for each column that is shown: first free text gives way, then whole columns, then the longest names."""
    widths = {name: min(width, FREE.get(name, width)) for name, width in natural.items()}
    for name in DROPPED:
        if _spare(widths, room) < 0:
            widths.pop(name, None)
    while (spare := _spare(widths, room)) < 0 and (
        cut := {n: w for n, w in widths.items() if n not in WHOLE and w > 4}
    ):
        widths[max(cut, key=cut.__getitem__)] -= 1
    for name in FREE:
        if name in widths and spare > 0:
            more = min(spare, natural[name] - widths[name])
            widths[name], spare = widths[name] + more, spare - more
    return widths


def _spare(widths: Mapping[str, int], room: int) -> int:
    return room - sum(widths.values()) - GAP * (len(widths) - 1)


def moment(value: str) -> str:
    """A time within a sentence: short on a terminal, as it is elsewhere."""
    return str(short(value)) if sys.stdout.isatty() else value


def short(value: Any) -> Any:
    """A time in UTC, for people: without its date where that is today's, without its seconds elsewhere."""
    if not isinstance(value, str) or not (read := TIME.fullmatch(value)):
        return value
    date, minute, second = read.groups()
    return f"{minute}{second}Z" if date == f"{datetime.now(UTC):%Y-%m-%d}" else f"{date} {minute}Z"


def _plain(lines: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """The same, as wide as it gets; drawn by rich, 100,000 lines would take a minute."""
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(_padded, line, widths, right)).rstrip() for line in lines)


def _padded(word: str, width: int, right: bool) -> str:
    blank = " " * (width - cell_len(word))
    return blank + word if right else word + blank


def cell(value: Any) -> Text:
    """One value; nothing in it is read as markup."""
    return Text(UNKNOWN, "yellow") if value is None else Text(harmless(str(value)))


def rendered_text(text: str, style: str) -> str:
    """Coloured on a terminal, and nothing but the text elsewhere."""
    return rendered(Text(text, style), strip=False)


def rendered(drawn: Any, *, strip: bool = True) -> str:
    """Drawn for where stdout goes: colours and a width only on a terminal."""
    terminal, out = sys.stdout.isatty(), StringIO()
    console = Console(file=out, force_terminal=terminal, highlight=False, emoji=False)
    console.width = max(console.width, NARROWEST) if terminal else UNLIMITED
    console.print(drawn, end="" if isinstance(drawn, Text) else "\n")
    return "\n".join(line.rstrip() if strip else line for line in out.getvalue().splitlines())
