"""Jobs of a chosen length that leave the moment of their start in a file."""

from __future__ import annotations

import os
import signal
import struct
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, arg

RECORD = struct.Struct("<16sd")


class Start(NamedTuple):
    """When a job began, by the machine's monotonic clock."""

    id: UUID
    at: float


@cache
def _file() -> int:
    """O_APPEND: the writes of several processes never mix."""
    return os.open(os.environ["FAIR_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def starts(file: Path) -> list[Start]:
    """All starts so far, in their order."""
    data = file.read_bytes() if file.exists() else b""
    whole = len(data) - len(data) % RECORD.size
    return [Start(UUID(bytes=id), at) for id, at in RECORD.iter_unpack(data[:whole])]


class Fair(Job, policy="system"):
    """Leaves its start, and lasts; one that `freezes` stops its worker until somebody lets it go on."""

    seconds: Mapped[float] = arg(default=0.02)
    freezes: Mapped[bool] = arg(default=False)

    def perform(self, session: Session) -> None:
        os.write(_file(), RECORD.pack(self.id.bytes, time.monotonic()))
        if self.freezes:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(self.seconds)
