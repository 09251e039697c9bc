"""From the return of the commit that enqueues to the first line of the job, with an idle worker."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from ..contender import Contender
from ..figures import Figures, spread
from ..ground import Ground
from ..peers import OURS
from ..scenario import Case, Scenario, World

RATE: Final = 50  # a second


def waits(ground: Ground) -> list[tuple[int, float]]:
    """When each job was committed, in ns, and the milliseconds until it started; in the order of the commits."""
    starts = ground.record.first()
    found = []
    for line in (ground.folder / "commits").read_text().splitlines():
        seq, _, after = map(int, line.split())
        found.append((after, (starts[seq] - after) / 1e6))
    return found


def measure(world: World, contender: Contender) -> Figures:
    """Some hundred jobs, one by one."""
    with world.ground(contender) as ground:
        ground.warm_worker()
        cpu, server = ground.processes.cpu(), ground.server.cpu()
        seconds = world.of(20, 5)
        jobs = ground.produce(RATE, seconds)["jobs"] + 2  # with the worker's and the producer's first
        ground.wait_started(jobs)
        ground.wait_left(0)
        ground.expect_once(jobs)
        used = {"worker_cpu": ground.processes.cpu() - cpu, "server_cpu": ground.server.cpu() - server}
        return {**spread([wait for _, wait in waits(ground)]), **{name: v / jobs * 1e6 for name, v in used.items()}}


def cases(world: World) -> Iterator[Case]:
    yield Case("magik_sa", partial(measure, world, OURS))
    for peer in world.rivals("pgqueuer-100", "oban"):
        yield Case(peer.name, partial(measure, world, peer))


SCENARIO: Final = Scenario(
    "latency",
    "Commit to start, in ms: 50 jobs/s, an idle worker",
    cases,
    ("p50", "p95", "p99", "max", "worker_cpu", "server_cpu"),
)
