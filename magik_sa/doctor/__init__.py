"""What is wrong with the database under a queue, or will be: measured, with the cause and what mends it.

One finding is one function; whoever adds one gives it its place here, and its name a line in docs/operate.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ..asking import Unanswered
from .cleaning import autovacuum
from .finding import WORST_FIRST, Finding, Limits, Severity, Subject
from .horizon import prepared_transactions, replication_slots
from .left import dead_letters, locked_rows, paused_queues, unserved
from .room import connections, locks, pools
from .shared import multixact, notifications
from .tables import blocked_rows, schema_drift, schema_version
from .timeouts import idle_in_transaction_session_timeout, statement_timeout
from .vacuum import dead_tuples, oldest_transaction
from .way import pooler, silence

__all__ = ["FINDINGS", "Finding", "Limits", "Severity", "Subject", "examine", "ranked", "worst"]

Look = Callable[[Subject], Finding]

# In the order in which one finding explains the next.
FINDINGS: Final[tuple[Look, ...]] = (
    connections,  # first: others make connections of their own
    pools,
    locks,
    pooler,
    silence,
    schema_version,
    schema_drift,
    oldest_transaction,
    prepared_transactions,
    replication_slots,
    autovacuum,
    dead_tuples,
    multixact,
    notifications,
    blocked_rows,
    locked_rows,
    unserved,
    paused_queues,
    dead_letters,
    idle_in_transaction_session_timeout,
    statement_timeout,
)


def examine(subject: Subject) -> list[Finding]:
    """Every finding, the worst first."""
    return ranked([_look(look, subject) for look in FINDINGS])


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, and else in their order."""
    return sorted(findings, key=lambda finding: WORST_FIRST.index(finding.severity))


def worst(findings: list[Finding]) -> Severity:
    """The worst severity there is."""
    return min((finding.severity for finding in findings), key=WORST_FIRST.index)


def _look(look: Look, subject: Subject) -> Finding:
    try:
        return look(subject)
    except Unanswered as why:
        return Finding(look.__name__, Severity.UNKNOWN, f"unknown: {why}")
