"""Enqueueing from one process, nobody waiting: job by job beside a plain insert, and a thousand at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from .. import limits
from ..contender import Contender
from ..figures import Figures, Unsound
from ..peers import OURS, PLAIN
from ..scenario import Case, Scenario, World

WARMING: Final = 1  # job before the clock starts


def measure(world: World, contender: Contender, mode: str) -> Figures:
    """As many as can be in some seconds."""
    with world.ground(contender) as ground:
        done = ground.enqueue(mode, world.of(5, 2))
        if (there := ground.left()) != done["jobs"] + WARMING:
            raise Unsound(f"{there} jobs are there, of {done['jobs'] + WARMING}")
        return {"jobs": done["jobs"], "rate": done["rate"]}


def singly(world: World) -> Iterator[Case]:
    yield Case("magik_sa", partial(measure, world, OURS, "single"))
    yield Case(PLAIN.name, partial(measure, world, PLAIN, "single"))
    for peer in world.rivals("pgqueuer-100"):
        yield Case(peer.name, partial(measure, world, peer, "single"))


def in_bulk(world: World) -> Iterator[Case]:
    yield Case("magik_sa", partial(measure, world, OURS, "bulk"))
    for peer in world.rivals("pgqueuer-100", "awa"):
        if peer.call("info")["has_bulk"]:
            yield Case(peer.name, partial(measure, world, peer, "bulk"))
    yield Case("I10", partial(limits.insert, world.server, world.of(5, 2)))


ENQUEUE: Final = Scenario("enqueue", "Enqueue job by job: session.add and commit", singly)
BULK: Final = Scenario("bulk", "Enqueue 1,000 in a call and a commit", in_bulk)
