"""How many threads one process can have: jobs that wait, as for an answer from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from ..claims import cost, taken
from ..figures import Figures, spread
from ..scenario import Case, Scenario, World
from .latency import waits

COUNTS: Final = (10, 50, 100, 500)
LASTS: Final = 45.0  # seconds that the waiting jobs wait
WAITING: Final = 1_000_000  # their numbers begin here


def measure(world: World, threads: int) -> Figures:
    """All threads but one wait; the last does what comes one by one."""
    with world.ground(server=world.servers.of(18, wide=True)) as ground:
        ground.count_statements()
        ground.warm_worker(threads, sleep=LASTS)
        idle, before = ground.processes.kib("VmRSS"), taken(ground.connection)
        ground.load(threads - 1, "sleep", base=WAITING, batch=threads)
        ground.wait_started(threads)
        starts = [start.at for start in ground.record.starts() if start.seq >= WAITING]
        claim = cost(ground, before)
        jobs = ground.produce(20, world.of(10, 4))["jobs"] + 1
        ground.wait_started(threads + jobs)
        memory = {"idle": idle / 1024, "busy": ground.processes.kib("VmRSS") / 1024}
        times = {"filled": (max(starts) - min(starts)) / 1e6, "claim_ms": claim}
        return {**memory, **times, **spread([wait for _, wait in waits(ground)])}


def cases(world: World) -> Iterator[Case]:
    for threads in COUNTS[: world.of(4, 3)]:
        yield Case(f"{threads} threads", partial(measure, world, threads))


SCENARIO: Final = Scenario(
    "threads",
    "Threads of one worker: MiB idle and with all but one waiting; ms from first to last start, and commit to start",
    cases,
    ("idle", "busy", "filled", "claim_ms", "p50", "p99"),
)
