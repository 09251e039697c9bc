"""Text for a terminal, a log or a traceback, whoever wrote it: it stays on its line and commands nothing."""

from __future__ import annotations

import shlex


def harmless(text: str) -> str:
    """`text` on one line: what would command a terminal, or turn the writing round, is shown as a code."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def word(text: str) -> str:
    """`text` as one word of a command that is to be pasted into a shell."""
    quoted = shlex.quote(text)
    return f"-- {quoted}" if text.startswith("-") else quoted
