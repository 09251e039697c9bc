"""What jobs have written when they started: how many, which, when."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple


class Start(NamedTuple):
    """`seq` is the job's number; `at` the moment, and `since` that of its enqueueing where it knows it, in ns."""

    seq: int
    at: int
    since: int = 0


class Record:
    """The file that workers append to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self._read, self._count = 0, 0

    def count(self) -> int:
        """Starts so far; reads only what is new."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        self._count += new.count(b"\n") - new.count(b"#")
        return self._count

    def starts(self) -> list[Start]:
        """All of them, in the order of the file."""
        return [Start(*map(int, line.split())) for line in self._lines() if not line.startswith("#")]

    def first(self) -> dict[int, int]:
        """When each job started for the first time."""
        found: dict[int, int] = {}
        for start in self.starts():
            found.setdefault(start.seq, start.at)
        return found

    def repeated(self) -> list[int]:
        """Jobs that started more than once."""
        return [seq for seq, times in Counter(start.seq for start in self.starts()).items() if times > 1]

    def cpu_before(self) -> float:
        """CPU seconds that the processes had used when their first jobs started."""
        return sum(int(line.split()[2]) for line in self._lines() if line.startswith("#")) / 1e9

    def _lines(self) -> list[str]:
        return self.path.read_text().splitlines()
