"""What a claim deals in: jobs whose lock this worker holds, and what it has in hand already."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

Owner = tuple[int, Any]  # backend_pid and backend_start of the session that a note names

INTERRUPTED = "RunError: MAGIK_JOB_INTERRUPTED"  # how last_error begins where a run's worker died


@dataclass(eq=False, slots=True)
class Claimed:
    """A job whose lock this worker holds: the row as re-read, and what an older note told of a run before.

    `interrupted`: a run before had begun and its worker died. `suspect`: there was a note, but the run may not
    have begun; or its last failure was such a death. The note of each must say that it has begun before it starts;
    that of an interrupted one does already.
    """

    row: dict[str, Any]
    interrupted: bool
    suspect: bool
    id: UUID = field(init=False)

    def __post_init__(self) -> None:
        self.id = self.row["id"]

    @property
    def key_lock(self) -> int | None:
        key: int | None = self.row["key_lock"]
        return key


@dataclass(frozen=True)
class Batch:
    """What one claim brought: `jobs` to run, in claim order, of so many `candidates`.

    Not to be run now: those `refused` because their key runs elsewhere, and those `touched` by an open transaction.
    """

    jobs: list[Claimed]
    refused: list[Claimed]
    touched: list[Claimed]
    candidates: int


@dataclass(frozen=True)
class Busy:
    """What this process has in hand: `ids` (running, or set aside for a moment) and the `keys` that run."""

    ids: Collection[UUID]
    keys: Collection[int]


def keys_of(jobs: Iterable[Claimed]) -> list[int]:
    """The locks on keys that these jobs hold."""
    return [job.key_lock for job in jobs if job.key_lock is not None]
