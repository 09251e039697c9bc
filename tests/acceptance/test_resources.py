"""After any number of jobs or notifications a worker holds what it held before, and a flood keeps nothing waiting."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from magik_sa.worker.ear import IN_VAIN, SHUT_FOR
from magik_sa.worker.locker import HEARTBEAT
from tests.resources.house import GROWTH, MODULES, House
from tests.tools.workers import WorkerProcess

LONG = os.environ.get("MAGIK_CHAOS") == "long"
JOBS, NOTES = (20_000, 200_000) if LONG else (500, 20_000)
THREADS = 2


@pytest.fixture
def house(database: str, superuser_dsn: str, tmp_path: Path) -> Iterator[House]:
    env = {"BURST_FILE": str(tmp_path / "runs")}
    with WorkerProcess(database, *MODULES, concurrency=THREADS, env=env, fresh=True) as worker:
        worker.wait_ready()
        with closing(House(database, superuser_dsn, worker)) as house:
            yield house


@pytest.mark.slow
@pytest.mark.timeout(1_800 if LONG else 120)
def test_many_jobs_and_notifications_leave_everything_where_it_was(house: House) -> None:
    rounds = []
    for _ in range(3):
        house.flood(NOTES)
        house.work(JOBS)
        rounds.append(house.rest())
    assert rounds[1].countable == rounds[2].countable
    assert rounds[2].blocks - rounds[1].blocks < JOBS // 5, rounds
    assert rounds[2].process.rss - rounds[1].process.rss < GROWTH, rounds
    assert rounds[2].process.peak - rounds[1].process.peak < GROWTH, rounds


def test_a_notification_costs_the_worker_no_statement(house: House) -> None:
    house.rest()
    for seconds, asked in (house.trickle(3_000), house.flood(20_000)):
        assert asked < 5 * (IN_VAIN + seconds / SHUT_FOR)  # statements of a look at most, and looks


def test_a_notification_costs_a_worker_without_a_free_thread_nothing_at_all(house: House) -> None:
    house.occupy(THREADS)
    seconds, asked = house.trickle(1_000)
    assert asked <= 1 + seconds / HEARTBEAT


def test_a_flood_of_notifications_keeps_no_job_waiting(house: House) -> None:
    flooding = threading.Thread(target=house.flood, args=[300_000])
    flooding.start()
    waits = []
    while flooding.is_alive():
        waits.append(house.wake())
    flooding.join()
    assert len(waits) > 5
    assert max(waits) < 1.0
