"""What a worker takes: memory idle and after 100,000 jobs, and processor and statements while it has nothing to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from ..contender import Contender
from ..figures import Figures
from ..ground import Ground
from ..peers import OURS
from ..scenario import Case, Scenario, World

# Of this database; our own session began before its statements were counted.
STATEMENTS: Final = """
SELECT coalesce(sum(calls), 0)::bigint
  FROM pg_stat_statements(false) s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()"""


def memory(world: World, contender: Contender) -> Figures:
    """Resident, in MiB; `grown` is what the second half of the jobs has added."""
    half = world.of(50_000, 2_500)
    with world.ground(contender) as ground:
        ground.warm_worker()
        found = [ground.processes.kib("VmRSS") / 1024]
        for number in range(2):
            ground.load(half, base=number * half)
            ground.wait_started((number + 1) * half + 1, 3_600)
            ground.wait_left(0)
            found.append(ground.processes.kib("VmRSS") / 1024)
        ground.expect_once(2 * half + 1)
        return {"idle": found[0], "after": found[2], "grown": found[2] - found[1]}


def idle(world: World, contender: Contender) -> Figures:
    """The share of a core, in percent, and statements a second."""
    with world.ground(contender) as ground:
        ground.count_statements()
        ground.warm_worker()
        rest(5)
        asked, cpu, server, begun = statements(ground), ground.processes.cpu(), ground.server.cpu(), time.monotonic()
        rest(world.of(60, 20))
        spent = time.monotonic() - begun
        return {
            "core": (ground.processes.cpu() - cpu) / spent * 100,
            "server_core": (ground.server.cpu() - server) / spent * 100,
            "statements": (statements(ground) - asked) / spent,
        }


def statements(ground: Ground) -> int:
    return int(ground.one(STATEMENTS))


def rest(seconds: float) -> None:
    """The time itself is what is measured."""
    time.sleep(seconds)


def memory_cases(world: World) -> Iterator[Case]:
    yield Case("magik_sa", partial(memory, world, OURS))
    for peer in world.rivals():
        yield Case(peer.name, partial(memory, world, peer))


def idle_cases(world: World) -> Iterator[Case]:
    yield Case("magik_sa", partial(idle, world, OURS))
    for peer in world.rivals():
        yield Case(peer.name, partial(idle, world, peer))


MEMORY: Final = Scenario(
    "memory",
    "Resident memory of a worker, in MiB: idle, and after 100,000 jobs",
    memory_cases,
    ("idle", "after", "grown"),
)
IDLE: Final = Scenario(
    "idle", "A worker with nothing to do, for a minute", idle_cases, ("core", "server_core", "statements")
)
