"""Jobs that insert one row, beside the same body in threads without a queue."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Final

from ..contender import ROOT, Contender
from ..draining import drain
from ..figures import Figures, Unsound
from ..ground import Ground
from ..peers import OURS
from ..scenario import Case, Scenario, World


def queued(world: World, kind: str, contender: Contender = OURS, workers: int = 1) -> Figures:
    """By jobs."""
    jobs = world.of(min(contender.drain, 6_000), min(contender.drain // 4, 1_500)) * workers
    with world.ground(contender) as ground:
        ground.load(jobs, kind)
        ground.settle()
        figures = drain(ground, jobs, workers)
        expect_rows(ground, jobs)
        return figures


def bare(world: World, kind: str) -> Figures:
    """By threads."""
    jobs = world.of(6_000, 1_500)
    with world.ground() as ground:
        command = [sys.executable, "-m", "benchmarks.bare", "--dsn", ground.dsn, "--body", kind]
        command += ["--n", str(jobs), "--record", str(ground.record.path)]
        env = OURS.environment()
        said = subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True).stdout
        expect_rows(ground, jobs)
        ground.expect_once(jobs)
        return {"jobs": jobs, "rate": json.loads(said)["rate"]}


def expect_rows(ground: Ground, jobs: int) -> None:
    """Raise `Unsound` unless each job has inserted its row, once."""
    query = "SELECT count(*) || ' rows of ' || count(DISTINCT seq) || ' jobs' FROM app_rows"
    if (found := ground.one(query)) != f"{jobs} rows of {jobs} jobs":
        raise Unsound(f"{found}, of {jobs}")


def by_add(world: World) -> Iterator[Case]:
    yield Case("magik_sa", partial(queued, world, "add"))
    yield Case("magik_sa, two processes", partial(queued, world, "add", workers=2))
    yield Case("the bare loop", partial(bare, world, "add"))


def by_insert(world: World) -> Iterator[Case]:
    yield Case("magik_sa", partial(queued, world, "db"))
    yield Case("magik_sa, by the driver", partial(queued, world, "own"))
    for peer in world.rivals("pgqueuer-100"):
        yield Case(peer.name, partial(queued, world, "db", peer))
    yield Case("the bare loop", partial(bare, world, "db"))


SHOWN: Final = ("rate", "worker_cpu", "server_cpu", "peak")
ADD: Final = Scenario("db-add", "Jobs that insert one row by session.add, in the commit of their end", by_add, SHOWN)
INSERT: Final = Scenario(
    "db-insert",
    "Jobs that insert one row by session.execute(insert()); by the driver, as a peer's, it is not one commit",
    by_insert,
    SHOWN,
)
