"""What a process holds: memory, threads, descriptors. From /proc."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Held(NamedTuple):
    """`rss` is resident memory, `peak` the most there ever was of it; both in KiB."""

    rss: int
    peak: int
    threads: int
    descriptors: int


def held(pid: int) -> Held:
    """What this process holds now."""
    status = Path(f"/proc/{pid}/status").read_text()
    rss, peak, threads = (int(re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)[1]) for name in NAMES)  # type: ignore[index]
    return Held(rss, peak, threads, len(list(Path(f"/proc/{pid}/fd").iterdir())))


NAMES = ("VmRSS", "VmHWM", "Threads")


def is_frozen(pid: int) -> bool:
    """Whether this process was stopped by a signal, and not let go on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
