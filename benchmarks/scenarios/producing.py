"""Ten producers at once, with the triggers that wake workers and without: nobody to wake, and somebody who keeps up."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from .. import limits
from ..figures import Figures, Unsound, spread
from ..ground import Ground
from ..scenario import Case, Scenario, World

# What `session.add` of a job sends, as ten clients of pgbench: by an ORM they would wait for their own Python, not for
# each other's commits, which is what this is about.
ADD: Final = """\
INSERT INTO magik_jobs (id, job_class, queue, priority, args, context, key_digest, version, error_count, last_error,
                        failed_at, finished_at, expired_at)
VALUES (gen_random_uuid(), 'Timed', 'default', 100, '{}', NULL, NULL, 1, 0, NULL, NULL, NULL, NULL)
ON CONFLICT (job_class, key_digest)
   WHERE key_digest IS NOT NULL AND finished_at IS NULL AND expired_at IS NULL DO NOTHING;
"""

DROP: Final = "DROP TRIGGER magik_jobs_added ON magik_jobs"

# What everybody does: tell whoever listens, at each commit.
PLAIN: Final = """
CREATE FUNCTION plain_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('magik_' || TG_RELID, queue) FROM (SELECT DISTINCT queue FROM added) a;
  RETURN NULL;
END $$;
CREATE TRIGGER plain_notify AFTER INSERT ON magik_jobs REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION plain_notify()"""

TRIGGERS: Final = {"magik_sa": (), "no triggers": (DROP,), "plain notify": (DROP, PLAIN)}
STEADY: Final = 400  # a second: what each can keep up with, so that a wait is the waking's and not a backlog's
SLEEP: Final = 30.0  # seconds, longer than anything here takes


def wake_by(ground: Ground, triggers: str) -> None:
    """Put these in the place of ours."""
    for statement in TRIGGERS[triggers]:
        ground.connection.execute(statement.encode())


def busy(world: World, triggers: str) -> Figures:
    """All threads of the worker have a job that lasts."""
    with world.ground() as ground:
        ground.load(10, "sleep")
        ground.worker(sleep=SLEEP)
        ground.wait_started(10)
        wake_by(ground, triggers)
        done = limits.pgbench(world.server, ground.dsn, ADD, world.of(8, 3))
        if (there := ground.left()) != done.transactions + 10:
            raise Unsound(f"{there} jobs are there, of {done.transactions + 10}")
        ground.expect_once(10, left=there)
        return {"jobs": done.transactions, "rate": done.rate}


def keeping_up(world: World, triggers: str, rate: float | None = None) -> Figures:
    """The worker does what comes. `left` tells how far it was behind when the producers stopped."""
    with world.ground() as ground:
        ground.warm_worker()
        wake_by(ground, triggers)
        done = limits.pgbench(world.server, ground.dsn, ADD, world.of(8, 3), rate)
        left = ground.left()
        ground.wait_left(0, 120)
        ground.expect_once(done.transactions + 1)
        waits = [(start.at - start.since) / 1e6 for start in ground.record.starts() if start.since]
        return {"jobs": done.transactions, "rate": done.rate, "left": left, **spread(waits)}


def busy_cases(world: World) -> Iterator[Case]:
    for triggers in TRIGGERS:
        yield Case(triggers, partial(busy, world, triggers))


def keeping_up_cases(world: World) -> Iterator[Case]:
    for triggers in TRIGGERS:
        yield Case(triggers, partial(keeping_up, world, triggers))
    for triggers in ("magik_sa", "plain notify"):
        yield Case(f"{triggers}, {STEADY}/s", partial(keeping_up, world, triggers, STEADY))


BUSY: Final = Scenario("producers", "Ten producers, one commit a job, the worker busy", busy_cases)
KEEPING_UP: Final = Scenario(
    "producers-worker",
    "Ten producers, one commit a job, one worker that does what comes; begin of the transaction to start, in ms",
    keeping_up_cases,
    ("rate", "left", "p50", "p99"),
)
