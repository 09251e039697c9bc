"""SIGKILL for a worker with ten running jobs, beside one that idles: when have all of them started again?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from ..contender import Contender
from ..figures import Figures, Unsound
from ..ground import Ground
from ..peers import OURS
from ..scenario import Case, Scenario, World

JOBS: Final = 10
LASTS: Final = 20.0  # seconds
LIMIT: Final = 150.0  # seconds that a contender is given


def measure(world: World, contender: Contender) -> Figures:
    """Ten jobs on one worker, another comes and idles, the first is killed."""
    with world.ground(contender) as ground:
        ground.load(JOBS, "sleep")
        victim = ground.worker(sleep=LASTS)
        ground.wait_started(JOBS)
        heir = ground.worker(sleep=0.1)
        idles(ground)
        if heir.poll() is not None:
            raise Unsound("the second worker has ended")
        for process in [*victim.children(recursive=True), victim]:
            process.kill()
        killed = time.time_ns()
        ground.wait_started(2 * JOBS, LIMIT)
        again = sorted((start.at - killed) / 1e6 for start in ground.record.starts()[JOBS:])
        if len(again) != JOBS or again[0] < 0:
            raise Unsound(f"{len(again)} starts after the kill, the first after {again[0]:.0f} ms")
        ground.wait_left(0)
        return {"first": again[0], "all": again[-1]}


def idles(ground: Ground) -> None:
    """Wait until the second worker has had time to start, and nothing to do: its start takes a second or two."""
    time.sleep(4)
    if ground.record.count() != JOBS:
        raise Unsound("the second worker runs what the first has")


def cases(world: World) -> Iterator[Case]:
    yield Case("magik_sa", partial(measure, world, OURS))
    for peer in world.rivals():
        yield Case(peer.name, partial(measure, world, peer))


SCENARIO: Final = Scenario(
    "killed",
    "SIGKILL with ten running jobs, an idle second worker; until they start again, in ms",
    cases,
    ("first", "all"),
)
