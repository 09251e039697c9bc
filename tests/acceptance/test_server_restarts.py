"""The server is stopped, crashes or stays away, and comes back: workers work again within ten seconds by themselves.

What counts is the time from the moment that the server takes connections again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest

from tests.tools.cluster import SIGNALS, Cluster
from tests.tools.effects import Effects
from tests.tools.schema import migrate
from tests.tools.sessions import TWO_KEYS, advisory_locks
from tests.tools.waiting import never, until
from tests.tools.workers import WorkerProcess

MODULES = ("tests.jobs.lasting", "tests.jobs.ticking")
WITHIN = 10.0  # seconds
AWAY = 15.0
LONG_JOBS = """
INSERT INTO magik_jobs (job_class, args) SELECT 'Lasting', '{"seconds": 60}' FROM generate_series(1, 4)"""
# Those of them that a worker has in hand: it has kept them, or begun them again.
IN_HAND = """
SELECT count(*) FROM magik_jobs j JOIN pg_locks l
    ON l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
   AND (l.classid::bigint << 32) | l.objid::bigint = uuid_hash_extended(j.id, 'magik_jobs'::regclass::oid::bigint)
 WHERE j.args <> '{}' AND j.job_class = 'Lasting'"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        migrate(cluster.url())
        yield cluster


@pytest.fixture
def effects(cluster: Cluster) -> Effects:
    return Effects(cluster.url())


@pytest.fixture
def workers(cluster: Cluster, effects: Effects) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    """One runs four jobs, beside the schedule of a tick a second; the other waits for what its threads could do."""
    with ExitStack() as stack:
        ticking = {"TICKING_EVERY": "1s"}
        busy = stack.enter_context(WorkerProcess(cluster.url(), *MODULES, concurrency=8, env=ticking)).wait_ready()
        cluster.execute(LONG_JOBS)
        until(
            lambda: (effects.count("Lasting"), bool(effects.count("Ticking"))) == (4, True), what="four run, and ticks"
        )
        idle = WorkerProcess(cluster.url(), MODULES[0], queue=["default", "mail"], concurrency=8, poll_interval="1h")
        stack.enter_context(idle).wait_ready()
        until(lambda: advisory_locks(cluster.dsn(), f"{idle.app_name} locker")[TWO_KEYS], what="the other waits")
        yield busy, idle


def smartly_then_killed(cluster: Cluster) -> None:
    """A smart shutdown waits for the workers; the postmaster is killed meanwhile."""
    assert cluster.process is not None
    cluster.process.send_signal(SIGNALS["smart"])
    until(lambda: "received smart shutdown request" in cluster.read_log(), what="it waits for its sessions")
    cluster.kill()


ENDS: dict[str, Callable[[Cluster], object]] = {
    "fast": lambda cluster: cluster.stop("fast"),
    "immediate": lambda cluster: cluster.stop("immediate"),
    "smart_and_kill": smartly_then_killed,
}


@pytest.mark.parametrize("end", ENDS)
def test_after_a_restart_workers_work_again_within_ten_seconds(
    cluster: Cluster, effects: Effects, workers: tuple[WorkerProcess, WorkerProcess], end: str
) -> None:
    """The jobs that ran, one that comes for the idle worker, and the ticks."""
    ENDS[end](cluster)
    cluster.start()
    took = back_at_work(cluster, effects)
    print(f"after {end}: " + ", ".join(f"{what} {seconds:.1f} s" for what, seconds in took.items()))
    assert max(took.values()) < WITHIN
    for worker in workers:
        worker.expect_alive()


def test_a_server_that_was_away_for_15_seconds_finds_the_workers_waiting(
    cluster: Cluster, effects: Effects, workers: tuple[WorkerProcess, WorkerProcess]
) -> None:
    cluster.stop("fast")
    never(lambda: any(worker.returncode is not None for worker in workers), during=AWAY, what="a worker gave up")
    cluster.start()
    took = back_at_work(cluster, effects)
    print(f"after {AWAY:g} s: " + ", ".join(f"{what} {seconds:.1f} s" for what, seconds in took.items()))
    assert max(took.values()) < WITHIN


def back_at_work(cluster: Cluster, effects: Effects) -> dict[str, float]:
    """Seconds from now to what is awaited, each for itself."""
    began, took = time.monotonic(), dict[str, float]()
    with psycopg.connect(cluster.dsn(), autocommit=True) as app:
        ticks, runs = effects.count("Ticking"), effects.count("Lasting")
        app.execute("INSERT INTO magik_jobs (job_class, queue) VALUES ('Lasting', 'mail')")

        def all_of_it() -> bool:
            seen = {
                "what ran": app.execute(IN_HAND).fetchone() == (4,),
                "what was added": app.execute("SELECT FROM magik_jobs WHERE queue = 'mail'").fetchone() is None,
                "ticks": effects.count("Ticking") > ticks,
            }
            for what in [what for what, there in seen.items() if there and what not in took]:
                took[what] = time.monotonic() - began
            return all(seen.values())

        until(all_of_it, WITHIN, what="back at work")
    print(f"{effects.count('Lasting') - runs - 1} of 4 began again; ", end="")
    return took


def test_a_crash_that_empties_the_notes_takes_no_running_job_from_its_worker(
    cluster: Cluster, effects: Effects
) -> None:
    """Nobody else has had them: their locks are free."""
    with WorkerProcess(cluster.url(), MODULES[0], concurrency=4) as worker:
        worker.wait_ready()
        cluster.execute(LONG_JOBS)
        until(lambda: effects.count("Lasting") == 4, what="four run")
        cluster.restart("immediate")
        said = worker.wait_log(r"event=locking_connection_back .*")[0]
    assert "kept=4" in said
    assert "superseded=0" in said
    notes = "SELECT count(*) FROM magik_claims WHERE begun"
    assert cluster.execute(notes) == [(4,)]
