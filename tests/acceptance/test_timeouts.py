"""Time limits of jobs in a worker's process: close to the limit, over a silent network, while it drains."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, make_url
from sqlalchemy.orm import Session as OrmSession

from magik_sa import Job
from tests.jobs.limited import Limited, LimitedToSeconds, Shaving, Tables, Unlimited
from tests.tools.proxy import Proxy
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

LIMITED = "tests.jobs.limited"
ASLEEP = "SELECT count(*) FROM pg_stat_activity WHERE starts_with(query, 'SELECT pg_sleep') AND state = 'active'"


@pytest.fixture
def app(dsn: str, engine: Engine) -> Iterator[psycopg.Connection[Any]]:
    Tables.metadata.create_all(engine)
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def add(engine: Engine) -> Callable[..., None]:
    """Adds jobs in a transaction of their own."""

    def add(*jobs: Job) -> None:
        with OrmSession(engine, expire_on_commit=False) as session, session.begin():
            session.add_all(jobs)

    return add


def one(app: psycopg.Connection[Any], query: str, *values: object) -> Any:
    return (app.execute(query.encode(), values).fetchone() or [None])[0]


def error_of(app: psycopg.Connection[Any], job: Job) -> str:
    return str(one(app, "SELECT coalesce(last_error, '') FROM magik_jobs WHERE id = %s", job.id))


def durations(worker: WorkerProcess) -> dict[str, float]:
    """How many milliseconds each job took, by its id."""
    return {id: float(ms) for ms, id in re.findall(r"duration_ms=(\S+) job_id=(\S+)", worker.stderr())}


def test_jobs_that_end_close_to_their_limit_are_judged_by_the_clock(
    app: psycopg.Connection[Any], database: str, add: Callable[..., None]
) -> None:
    """200 that end within 5 ms of it, before or after; each is the next job of another."""
    chance = random.Random(1)
    jobs = [Shaving(seconds=0.1 + chance.uniform(-0.005, 0.005)) for _ in range(200)]
    with WorkerProcess(database, LIMITED, concurrency=6) as worker:
        worker.wait_ready()
        add(*jobs)
        until(lambda: not one(app, "SELECT count(*) FROM magik_jobs WHERE expired_at IS NULL"), 60, what="all ended")
        until(lambda: len(durations(worker)) == 200, what="all in the log")
        took = durations(worker)
    over = dict(app.execute("SELECT id, last_error FROM magik_jobs").fetchall())
    assert all(error.startswith("JobTimeout: MAGIK_JOB_TIMEOUT") for error in over.values())
    assert all(took[str(id)] >= 100 for id in over), "marked, and not over its limit"
    own = [what.split(" ") for (what,) in app.execute("SELECT what FROM notes WHERE what LIKE '% %'")]
    assert len(own) + len(over) == 200
    assert all(float(seconds) < 0.1 for _, seconds in own), "not marked, and over its limit"
    assert over, "the latest are over their limit"
    assert own, "the earliest are not"


def test_what_swallows_its_interrupts_has_timed_out_and_what_follows_runs(
    app: psycopg.Connection[Any], database: str, add: Callable[..., None]
) -> None:
    """The clock decides, whatever the body made of its interrupts."""
    swallowing = [Limited(how="swallows Exception"), Limited(how="swallows everything")]
    with WorkerProcess(database, LIMITED, concurrency=1) as worker:
        worker.wait_ready()
        add(*swallowing, Unlimited())
        until(lambda: one(app, "SELECT count(*) FROM magik_jobs") == 2, what="the last is done")
    for job in swallowing:
        assert "MAGIK_JOB_TIMEOUT" in error_of(app, job)
    assert one(app, "SELECT count(*) FROM notes") == 1


@pytest.mark.parametrize(("driver", "new"), [("psycopg", False), ("psycopg", True), ("psycopg2", True)])
def test_a_thread_comes_free_whose_connection_has_gone_silent(
    app: psycopg.Connection[Any], database: str, add: Callable[..., None], driver: str, new: bool
) -> None:
    """With `new` a cancel is not delivered either."""
    job, direct = Limited(how="waits for a query"), make_url(database)
    with Proxy(direct.host or "", direct.port or 0) as proxy:
        through = direct.set(drivername=f"postgresql+{driver}", host="127.0.0.1", port=proxy.port)
        url = through.render_as_string(hide_password=False)
        with WorkerProcess(url, LIMITED, concurrency=1, env={"MAGIK_LOCKING_URL": database}) as worker:
            worker.wait_log("event=ready", 20)
            proxy.silence_after(b"pg_sleep", new=new)  # not later: it is cancelled after 300 ms
            add(job)
            worker.wait_log("event=statement_hung_up .*limit=300ms", 20)
            proxy.resume()
            until(lambda: "MAGIK_JOB_TIMEOUT" in error_of(app, job), what="the job has failed")
            add(following := Unlimited())
            until(
                lambda: one(app, "SELECT count(*) FROM notes WHERE what = %s", str(following.id)), what="work goes on"
            )


def test_a_worker_drains_when_its_jobs_are_over_their_limit(
    app: psycopg.Connection[Any], database: str, add: Callable[..., None]
) -> None:
    """The stop waits for a job no longer than for its limit."""
    job = LimitedToSeconds(how="waits for a query")
    with WorkerProcess(database, LIMITED, concurrency=1, shutdown_timeout="20s") as worker:
        worker.wait_ready()
        add(job)
        until(lambda: one(app, ASLEEP), what="the statement runs")
        assert worker.terminate() == 0, "its query lasts for 30 s"
    assert "MAGIK_JOB_TIMEOUT" in error_of(app, job)
