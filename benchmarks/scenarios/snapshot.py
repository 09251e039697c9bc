"""A steady load while somebody's old snapshot keeps all dead rows: what the first tenth and the last came to."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import psycopg

from ..claims import Claims
from ..contender import Contender
from ..figures import Figures, spread
from ..peers import OURS
from ..scenario import Case, Scenario, World
from .latency import waits

RATE, BATCH = 1_000, 50  # jobs a second, and in a commit


def measure(world: World, contender: Contender, seconds: int) -> Figures:
    """For so long."""
    with world.ground(contender) as ground:
        ground.count_statements()
        ground.warm_worker()
        with psycopg.connect(ground.dsn) as holder, Claims(ground, seconds) as claims:
            holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            holder.execute("SELECT count(*) FROM app_rows")  # takes the snapshot
            jobs = ground.produce(RATE, seconds, BATCH)["jobs"] + 2
            left = ground.left()
            ground.wait_started(jobs)
            ground.wait_left(0)
            dead = ground.one("SELECT sum(n_dead_tup) FROM pg_stat_user_tables")
        ground.expect_once(jobs)
        found = waits(ground)
        figures = {"rate": jobs / seconds, "left": left, "dead": float(dead)}
        return {**figures, **tenths(found, seconds), **claims.tenths()}


def tenths(found: list[tuple[int, float]], seconds: float) -> Figures:
    """Jobs started in the first tenth of the time and in the last, and how long half of them had waited."""
    begun, tenth = found[0][0], seconds / 10 * 1e9
    first = [wait for at, wait in found if at + wait * 1e6 < begun + tenth]
    last = [wait for at, wait in found if begun + 9 * tenth <= at + wait * 1e6 < begun + 10 * tenth]
    halves = {"first_p50": spread(first)["p50"], "last_p50": spread(last)["p50"]}
    return {"kept": len(last) / len(first), **halves}


def cases(world: World, seconds: int) -> Iterator[Case]:
    yield Case("magik_sa", partial(measure, world, OURS, seconds))
    for peer in world.rivals():
        yield Case(peer.name, partial(measure, world, peer, seconds))


def scenario(name: str, title: str, seconds: int, *, long: bool = False) -> Scenario:
    """One of so many seconds; a quick run takes a sixth."""
    shown = ("rate", "left", "kept", "first_p50", "last_p50", "first_claim", "last_claim", "claim", "dead")
    rounds = 1 if long else 3
    return Scenario(
        name, title, lambda world: cases(world, world.of(seconds, max(20, seconds // 20))), shown, rounds, long
    )


MINUTE: Final = scenario("snapshot", "1,000 jobs/s for a minute under a held REPEATABLE READ snapshot", 60)
LONG: Final = scenario("snapshot-long", "The same for ten minutes", 600, long=True)
