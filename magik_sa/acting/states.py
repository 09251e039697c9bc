"""The states of a job, and what others call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..meant import meant

LIVE: Final = ("ready", "running", "scheduled", "errored")
STATES: Final = (*LIVE, "expired", "finished")
ORDINARY: Final = (*LIVE, "expired")  # what is meant where no state and no ids are named

ALSO: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("queued", "pending", "waiting", "enqueued", "due", "available", "new"), ("ready",)),
    **dict.fromkeys(("active", "started", "processing", "executing", "claimed", "locked"), ("running",)),
    **dict.fromkeys(("delayed", "deferred", "later", "future", "sleeping", "snoozed"), ("scheduled",)),
    **dict.fromkeys(("error", "errors", "failing", "retry", "retrying", "retryable"), ("errored",)),
    **dict.fromkeys(("failed", "failure"), ("errored", "expired")),
    **dict.fromkeys(("dead", "deadletter", "deadletters", "discarded", "dlq", "poison"), ("expired",)),
    **dict.fromkeys(("done", "completed", "complete", "success", "succeeded", "successful", "ended"), ("finished",)),
}


def no_state(word: str, states: Sequence[str] = STATES) -> str:
    """Of a word that is none of these states: which there are, and which was probably meant."""
    plain = "".join(letter for letter in word.casefold() if letter.isalpha())
    likely = [state for state in ALSO.get(plain, ()) if state in states] or meant(word.casefold(), states, 1)
    hint = f"; did you mean {' or '.join(likely)}?" if likely else "."
    return f"is none of {', '.join(states)}{hint}"
