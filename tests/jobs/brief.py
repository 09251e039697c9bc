"""Jobs that do nothing, and in no time."""

from __future__ import annotations

from magik_sa import Job


class Brief(Job, policy="system"):
    """Takes no Session."""

    def perform(self) -> None:
        pass
