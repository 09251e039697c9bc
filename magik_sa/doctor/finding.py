"""What a finding says, and what an examination has to go by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import cached_property
from typing import Any, Final

from ..asking import Asking
from ..status import status
from ..status.figures import Status


class Severity(Enum):
    """How bad it is, worst first. UNKNOWN: this role may not see it, or it could not be asked for in time."""

    CRITICAL = "critical"
    WARNING = "warning"
    UNKNOWN = "unknown"
    NOTE = "note"
    OK = "ok"


WORST_FIRST: Final = tuple(Severity)
SEE_ALL: Final = "Let this role see other roles' sessions: GRANT pg_read_all_stats TO {role}."


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `name` is API, as an error's code is.

    `said` is the measured value as a sentence, `measured` the same for programs. `cause` and `remedy` are there where
    something is to be done; where the remedy is SQL, `sql` has the statements.
    """

    name: str
    severity: Severity
    said: str
    measured: Mapping[str, Any] = field(default_factory=dict)
    cause: str = ""
    remedy: str = ""
    sql: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """From where on something is a warning."""

    oldest_transaction: timedelta = timedelta(minutes=5)  # twelve times as old is critical
    blocked: timedelta = timedelta(seconds=5)  # a wait of a job's row for somebody's transaction
    dead_tuples: int = 10_000  # in the job table, and at the same time
    dead_share: float = 0.2  # of its rows; autovacuum begins at 2,000
    connections: float = 0.8  # of those that may be made; 0.95 is critical
    locks: float = 0.5  # of the server's lock table; 0.8 is critical
    slots: int = 100_000  # transactions that a replication slot holds vacuum back; twelve times as many is critical
    notifications: float = 0.1  # of the server's queue of notifications; 0.5 is critical
    multixacts: float = 0.8  # of the age from which the server freezes them whatever it costs
    unserved: timedelta = timedelta(minutes=5)  # for which a job may be due and no worker there to run it
    dead_letters: int = 1_000


@dataclass(frozen=True)
class Subject:
    """A database under examination. `locking` is how a worker's locking connection would reach it: never shown."""

    asking: Asking
    locking: str = field(repr=False)
    limits: Limits = Limits()

    @cached_property
    def status(self) -> Status:
        """The figures of ``magik jobs status``, asked for once."""
        return status(self.asking)


def session(row: Any) -> str:
    """Whose it is, and from where, as far as that is seen: on a local socket there is no address."""
    client = f", from {row.client}" if row.client else ""
    return f"process {row.pid} ({row.application or 'no name'}, role {row.role}{client})"


def span(seconds: float) -> str:
    """A time as people say it: ``3.2 s``, ``12 min``, ``5.0 h``, ``3 days``."""
    for unit, size in (("days", 86_400 * 2), ("h", 3_600), ("min", 120)):
        if seconds >= size:
            return f"{seconds / {'days': 86_400, 'h': 3_600, 'min': 60}[unit]:.1f} {unit}"
    return f"{seconds:.1f} s"


def ago(seconds: float | None) -> str:
    """A time that has passed; None is never."""
    return "never" if seconds is None else f"{span(seconds)} ago"
