"""After any number of jobs or notifications a worker holds what it held before, and a flood keeps nothing waiting."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

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
    most = GROWTH if LONG else GROWTH // 10
    assert rounds[1].countable == rounds[2].countable
    assert rounds[2].process.rss - rounds[1].process.rss < most, rounds
    assert rounds[2].process.peak - rounds[1].process.peak < most, rounds


def test_a_notification_costs_the_worker_no_statement(house: House) -> None:
    house.rest()
    assert house.trickle(3_000) < 300
    _, asked = house.flood(20_000)
    assert asked < 200


def test_a_notification_costs_a_worker_without_a_free_thread_nothing_at_all(house: House) -> None:
    house.occupy(THREADS)
    assert house.trickle(1_000) <= 1  # a heartbeat


def test_a_flood_of_notifications_keeps_no_job_waiting(house: House) -> None:
    flooding = threading.Thread(target=house.flood, args=[300_000])
    flooding.start()
    waits = []
    while flooding.is_alive():
        waits.append(house.wake())
    flooding.join()
    assert len(waits) > 5
    assert max(waits) < 1.0
