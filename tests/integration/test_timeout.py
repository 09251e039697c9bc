"""Jobs over their limit: whatever they do they have failed, and harm nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine, make_url, select, text
from sqlalchemy.orm import Session as OrmSession

from magik_sa import Job
from tests.jobs.limited import (
    HOW,
    Ample,
    Dawdled,
    Limited,
    LimitedLonger,
    NoSecondTime,
    Note,
    Stirring,
    Tables,
    ToldAtLength,
    Unlimited,
)
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

on_both = pytest.mark.parametrize("bench", ["psycopg", "psycopg2"], indirect=True)
ENDLESS = sorted(set(HOW) - {"nothing"})
OURS = "SELECT pid FROM pg_stat_activity WHERE application_name = :name"


class Bench(NamedTuple):
    """A worker with one thread, and the database that it works on."""

    worker: WorkerProcess
    engine: Engine

    def add(self, *jobs: Job) -> None:
        with OrmSession(self.engine, expire_on_commit=False) as session, session.begin():
            session.add_all(jobs)

    def row(self, job: Job) -> Any:
        with self.engine.connect() as connection:
            query = text("SELECT *, run_at - now() > interval '50 min' AS later FROM magik_jobs WHERE id = :id")
            return connection.execute(query, {"id": job.id}).one_or_none()

    def notes(self) -> set[str]:
        with OrmSession(self.engine) as session:
            return set(session.scalars(select(Note.what)))

    def asleep(self) -> int:
        """How many statements of jobs run on the server."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE starts_with(query, 'SELECT pg_sleep') AND state = 'active'"
        with self.engine.connect() as connection:
            return int(connection.scalar(text(query)) or 0)

    def ended(self, job: Job) -> Any:
        """The row of a job that has failed."""
        return until(lambda: (row := self.row(job)) and row.last_error and row, what="the job has failed")

    def done(self, job: Job) -> None:
        until(lambda: self.row(job) is None, what="the job is done")


@pytest.fixture
def bench(request: pytest.FixtureRequest, database: str, engine: Engine) -> Iterator[Bench]:
    Tables.metadata.create_all(engine)
    url = (
        make_url(database)
        .set(drivername=f"postgresql+{getattr(request, 'param', 'psycopg')}")
        .render_as_string(hide_password=False)
    )
    with WorkerProcess(url, "tests.jobs.limited", concurrency=2) as worker:
        worker.wait_log("event=ready", 20)
        yield Bench(worker, engine)


@on_both
def test_over_its_limit_a_job_has_failed_whatever_it_did_and_the_next_is_unharmed(bench: Bench) -> None:
    """A failed try, with its pause; nothing that it wrote is left, and it holds nothing up."""
    spans = dict.fromkeys(ENDLESS, "300ms") | {"saves all the time": "3s"}  # else it might have saved nothing
    kinds = {"300ms": Limited, "3s": LimitedLonger}
    jobs = {how: (kinds[span](how=how), Unlimited()) for how, span in spans.items()}
    with bench.engine.connect() as other:
        other.execute(text("INSERT INTO notes VALUES ('held')"))
        for both in jobs.values():
            bench.add(*both)
        rows = {how: bench.ended(job) for how, (job, _) in jobs.items()}
        for _, following in jobs.values():
            bench.done(following)
    said = {how: row.last_error.partition(" Do less")[0] for how, row in rows.items()}
    assert said == {how: f"JobTimeout: MAGIK_JOB_TIMEOUT: It lasted longer than {span}." for how, span in spans.items()}
    assert {(row.error_count, row.expired_at, row.later) for row in rows.values()} == {(1, None, True)}
    saved = jobs["saves all the time"][0]  # as often as it committed
    assert bench.notes() == {str(saved.id), *(str(following.id) for _, following in jobs.values())}
    assert 1 <= bench.row(saved).args["cursor"] == bench.row(saved).version - 2


@on_both
def test_wherever_it_meets_a_session_the_next_job_is_unharmed(bench: Bench) -> None:
    stirring = [Stirring(until_first=n * 0.0003) for n in range(30)]
    following = [Ample(how="nothing") for _ in stirring]
    bench.add(*(job for pair in zip(stirring, following, strict=True) for job in pair))
    for over in stirring:
        assert bench.ended(over).last_error.startswith("JobTimeout: MAGIK_JOB_TIMEOUT")
    for job in following:
        bench.done(job)
    assert bench.notes() >= {str(job.id) for job in following}


@pytest.mark.parametrize("how", [how for how in HOW if how.startswith("spins after")])
def test_a_commit_that_fails_before_the_server_hears_of_it_puts_no_interrupt_off(bench: Bench, how: str) -> None:
    """An interrupt waits while the server commits, for up to three seconds."""
    bench.add(job := Limited(how=how))
    bench.ended(job)
    told = bench.worker.wait_log(r"event=job_retry duration_ms=(\S+)")
    assert 300 <= float(told.group(1)) < 3_300, "put off it would have come after those three seconds"


def test_the_error_tells_where_the_job_was(bench: Bench) -> None:
    spinning, waiting = LimitedLonger(how="spins"), LimitedLonger(how="waits for a query")
    bench.add(spinning, waiting)
    ended = "OperationalError"  # of the statement that it waits for, where its cancel comes before the interrupt
    for job, function, causes in ((spinning, "spin", ("Interrupt",)), (waiting, "query", ("Interrupt", ended))):
        assert any(f"caused by {cause}" in bench.ended(job).last_error for cause in causes)
        assert f"in {function}\n" in bench.ended(job).last_error


def test_with_its_tries_used_up_or_named_in_discard_on_it_is_a_dead_letter(bench: Bench) -> None:
    job, hopeless = Limited(how="spins"), NoSecondTime()
    bench.add(job, hopeless)
    assert bench.ended(hopeless).expired_at is not None
    bench.ended(job)
    with bench.engine.begin() as connection:
        connection.execute(text("UPDATE magik_jobs SET run_at = now(), version = version + 1"))
    until(lambda: bench.row(job).expired_at, what="a dead letter")
    assert (bench.row(job).error_count, bench.row(hopeless).error_count) == (2, 1)


@on_both
def test_a_statement_ends_on_the_server_too(bench: Bench) -> None:
    job = Limited(how="waits for a query")
    bench.add(job)
    bench.ended(job)
    until(lambda: bench.asleep() == 0, what="nothing of it runs on")


def test_on_failure_and_the_policy_have_the_same_limit(bench: Bench) -> None:
    told, dawdled = ToldAtLength(), Dawdled()
    bench.add(told, dawdled)
    assert "MAGIK_JOB_TIMEOUT" in bench.ended(dawdled).last_error
    until(lambda: "on_failure" in bench.ended(told).last_error, what="on_failure has ended")
    row = bench.row(told)
    assert row.expired_at is not None
    assert row.last_error.startswith("ValueError: broken")
    assert "on_failure then raised JobTimeout: MAGIK_JOB_TIMEOUT" in row.last_error
    assert bench.notes() == set()


@on_both
def test_only_a_job_over_its_limit_costs_a_new_connection(bench: Bench) -> None:
    def connections() -> set[int]:
        with bench.engine.connect() as connection:
            return set(connection.scalars(text(OURS), {"name": f"{bench.worker.app_name} performer"}))

    def done(*jobs: Job) -> set[int]:
        bench.add(*jobs)
        for job in jobs:
            bench.done(job)
        return connections()

    until(lambda: len(connections()) == 2, what="both threads have one")
    before = done(*(Ample(how="nothing") for _ in range(10)))
    assert done(*(Ample(how="nothing") for _ in range(10))) == before
    bench.add(over := Limited(how="spins"))
    bench.ended(over)
    until(lambda: len(connections() & before) == len(before) - 1, what="its connection is gone")
