"""Text from the database is shown on a terminal, and commands it nothing."""

from __future__ import annotations

import pytest

from magik_sa.harmless import harmless


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("payments", "payments"),
        ("Zahlungen für 🦄", "Zahlungen für 🦄"),
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("two\r\nlines\ttab", r"two\r\nlines\ttab"),
        ("\x9b31m", r"\x9b31m"),
        ("user\u202egnp.exe", r"user\u202egnp.exe"),
        ("zero\u200bwidth\u2028line", r"zero\u200bwidth\u2028line"),
        ("\x00\x07\x7f", r"\x00\x07\x7f"),
        ("back\\slash", "back\\slash"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_would_command_a_terminal_is_shown_as_a_code(text: str, shown: str) -> None:
    assert harmless(text) == shown
