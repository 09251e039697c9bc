"""Settings that end what would hold things up for ever. They are the application's to choose: notes, not warnings."""

from __future__ import annotations

from typing import Final

from .finding import Finding, Severity, Subject

# What a new session of this role begins with, whatever this one has set.
BEGINS_WITH: Final = """
SELECT reset_val AS value, unit, quote_ident(current_user) AS me FROM pg_settings WHERE name = :name"""

CAUSES: Final = {
    "idle_in_transaction_session_timeout": (
        "A program that forgets a transaction, or hangs in one, keeps its locks and holds vacuum back for ever.",
        "10min",
        "longer than any job may pause with its transaction open",
    ),
    "statement_timeout": (
        "A statement that never ends holds its locks, and vacuum back, for ever.",
        "1h",
        "longer than the application's longest statement",
    ),
}


def idle_in_transaction_session_timeout(subject: Subject) -> Finding:
    """Whether forgotten transactions end."""
    return _unset(subject, "idle_in_transaction_session_timeout")


def statement_timeout(subject: Subject) -> Finding:
    """Whether endless statements end."""
    return _unset(subject, "statement_timeout")


def _unset(subject: Subject, name: str) -> Finding:
    row, (cause, advised, longer) = subject.asking.one(BEGINS_WITH, name=name), CAUSES[name]
    measured = {"milliseconds": int(row.value)}
    if measured["milliseconds"]:
        return Finding(name, Severity.OK, f"{row.value} {row.unit} for the role {row.me}", measured)
    sql = (f"ALTER ROLE {row.me} SET {name} = '{advised}'",)
    return Finding(name, Severity.NOTE, f"not set for the role {row.me}", measured, cause, f"Choose one {longer}.", sql)
