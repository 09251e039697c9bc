"""No-op jobs that wait already: one worker process, then two, the peers, and the deletes that the server can do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from .. import limits
from ..contender import Contender
from ..draining import drain
from ..figures import Figures
from ..peers import OURS
from ..scenario import Case, Scenario, World


def measure(world: World, contender: Contender, workers: int = 1) -> Figures:
    """Load, then drain."""
    jobs = world.of(contender.drain, contender.drain // 4) * workers
    with world.ground(contender) as ground:
        ground.load(jobs)
        ground.settle()
        return drain(ground, jobs, workers)


def cases(world: World) -> Iterator[Case]:
    yield Case("magik_sa", partial(measure, world, OURS))
    yield Case("magik_sa, two processes", partial(measure, world, OURS, 2))
    for peer in world.rivals("pgqueuer-100"):
        yield Case(peer.name, partial(measure, world, peer))
    yield Case("D10", partial(limits.delete, world.server, world.of(5, 2)))


SCENARIO: Final = Scenario(
    "drain",
    "Drain no-op jobs: one worker process, concurrency 10",
    cases,
    ("rate", "starts", "worker_cpu", "server_cpu", "peak"),
)
