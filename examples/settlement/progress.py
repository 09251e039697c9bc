"""What is going on: bars on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

T = TypeVar("T")

REDRAW_EVERY = 0.05  # seconds
LINE_EVERY = 1.0


class Display:
    """Redraws what `counts` returns (name → how many) while something is waited for."""

    def __init__(self, console: Console, totals: Mapping[str, int], counts: Callable[[], Mapping[str, int]]) -> None:
        self.console, self.totals, self.counts = console, totals, counts
        columns = TextColumn("{task.description:>22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self.bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self.tasks = {name: self.bars.add_task(name, total=total) for name, total in totals.items()}
        self._line, self._line_at = "", 0.0

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.bars.stop()

    def say(self, what: str) -> None:
        """Print a line above the bars."""
        self.console.print(what, highlight=False)

    def until(self, condition: Callable[[], T | None], seconds: float) -> T | None:
        """Redraw until `condition` returns something true, and return that; None when the time is up."""
        deadline = time.monotonic() + seconds
        while not (found := condition()) and time.monotonic() < deadline:
            self._draw()
            time.sleep(REDRAW_EVERY)
        self._draw()
        return found or None

    def _draw(self) -> None:
        counts = self.counts()
        for name, task in self.tasks.items():
            self.bars.update(task, completed=counts[name])
        if not self.console.is_terminal and time.monotonic() >= self._line_at:
            self._print(", ".join(f"{name} {count}/{self.totals[name]}" for name, count in counts.items()))

    def _print(self, line: str) -> None:
        if line != self._line:
            self.console.print(line, highlight=False)
        self._line, self._line_at = line, time.monotonic() + LINE_EVERY
