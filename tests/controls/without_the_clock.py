"""Who is over its limit is told by the interrupt alone: who swallows it was in time."""

from typing import Any

from magik_sa import timeout
from magik_sa.interrupts import Interrupt
from magik_sa.timeout import Limit

from . import replace

original = timeout._verdict


def verdict(limit: Limit) -> Any:
    if not isinstance(limit.error, Interrupt):
        limit.ended, limit.deadline = 0.0, 1.0
    return original(limit)


def take_out() -> None:
    replace(timeout, "_verdict", verdict)
