"""Which faults strike when: made from the seed alone, so that a run can be asked for again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

# How often each kind comes in one deck. The decks follow each other, so that a run as short as one has every kind.
DECK: Final[Mapping[str, int]] = {
    "kill": 5,  # SIGKILL of a worker
    "term": 2,  # SIGTERM of a worker, as in a deploy
    "freeze": 2,  # SIGSTOP of a worker, and SIGCONT later
    "locker": 2,  # pg_terminate_backend of a locking connection
    "backend": 3,  # pg_terminate_backend of any session: performers, schedulers, producers
    "producer": 1,  # SIGKILL of a producer
    "clock": 1,  # the clock of one worker steps
    "restart": 1,  # the server, in the mode "immediate"
    "read_only": 1,  # a spell in which the server takes no writes
    "silence": 1,  # nothing passes between some workers and the server, and nothing is closed
    "snapshot": 1,  # a transaction with an old snapshot
}
LASTS: Final[Mapping[str, tuple[float, float]]] = {  # seconds
    "freeze": (0.3, 4.0),
    "read_only": (0.5, 3.0),
    "silence": (1.0, 15.0),
    "snapshot": (5.0, 20.0),
}
GAP: Final = (0.2, 1.6)  # seconds between two faults
LAST_ONES: Final = 1.0  # second at the end in which none begins


@dataclass(frozen=True)
class Fault:
    """One of them: when, in seconds from the start; `choice` in 0…1 says which worker or session; how long it lasts."""

    at: float
    kind: str
    choice: float
    lasts: float = 0.0

    def of(self, number: int) -> int:
        """Which of so many it strikes."""
        return min(int(self.choice * number), number - 1)


def plan(seconds: float, seed: int) -> list[Fault]:
    """The faults of a run of so many seconds."""
    chance, at, faults = random.Random(seed), 0.0, list[Fault]()
    for kind in _kinds(chance):
        at += chance.uniform(*GAP)
        if at > seconds - LAST_ONES:
            return faults
        faults.append(Fault(round(at, 3), kind, chance.random(), round(chance.uniform(*LASTS.get(kind, (0, 0))), 3)))
    raise AssertionError("the decks have an end")


def _kinds(chance: random.Random) -> Iterator[str]:
    while True:
        deck = [kind for kind, times in DECK.items() for _ in range(times)]
        chance.shuffle(deck)
        yield from deck
