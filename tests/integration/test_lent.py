"""Whatever a job does to the Connection that it was lent, the next on its thread gets it as the first did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.orm import Session as OrmSession

from magik_sa import Job
from tests.jobs.lending import CLOSED, LEFT, Following, LeavingBehind
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess


class Bench(NamedTuple):
    """A worker with one thread, and the database that it works on."""

    worker: WorkerProcess
    engine: Engine

    def run(self, *jobs: Job) -> dict[Any, str]:
        """Run them one after the other; the first line of the error of each that failed."""
        for number, job in enumerate(jobs):
            job.priority = number
        with OrmSession(self.engine, expire_on_commit=False) as session, session.begin():
            session.add_all(jobs)
        until(lambda: not self.ask("SELECT FROM magik_jobs WHERE expired_at IS NULL"), what="all have ended")
        rows = self.ask("SELECT id, split_part(last_error, E'\\n', 1) FROM magik_jobs")
        return dict(tuple(row) for row in rows)

    def ask(self, query: str) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(query)))

    def notes(self) -> list[str]:
        return [what for (what,) in self.ask("SELECT what FROM notes ORDER BY what")]


@pytest.fixture(params=["psycopg", "psycopg2"])
def bench(request: pytest.FixtureRequest, database: str, engine: Engine) -> Iterator[Bench]:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE notes (what text)"))
    url = make_url(database).set(drivername=f"postgresql+{request.param}").render_as_string(hide_password=False)
    with WorkerProcess(url, "tests.jobs.lending", concurrency=1) as worker:
        worker.wait_ready()
        yield Bench(worker, engine)
        assert worker.terminate() == 0


def test_what_a_job_has_set_there_is_gone_for_the_next_and_for_its_own_on_failure(bench: Bench) -> None:
    """It ends as if it had set nothing; what fails after it is rolled back."""
    jobs: dict[str, tuple[Job, ...]] = {
        how: (LeavingBehind(how=how), Following(), LeavingBehind(how=how, fails=True), Following(fails=True))
        for how in LEFT
    }
    failed = bench.run(*(job for four in jobs.values() for job in four))
    for _, _, leaving, following in jobs.values():
        assert failed.pop(leaving.id) == failed.pop(following.id) == "RuntimeError: as told"
    assert failed == {}
    assert bench.notes() == ["read committed"] * len(LEFT)


def test_what_a_job_has_set_there_keeps_nobody_from_recording_its_end(bench: Bench) -> None:
    failed = bench.run(leaving := LeavingBehind(how="another schema"), Following())
    assert 'relation "nowhere.magik_jobs" does not exist' in failed.pop(leaving.id)
    assert failed == {}


def test_a_connection_that_a_job_has_closed_is_replaced(bench: Bench) -> None:
    """The thread lives, and the job has failed if that threw away what it had not committed."""
    closing = {how: (LeavingBehind(how=how), LeavingBehind(how=how, fails=True), Following()) for how in CLOSED}
    failed = bench.run(*(job for three in closing.values() for job in three))
    for how, (leaving, failing, following) in closing.items():
        assert failed[failing.id] == "RuntimeError: as told", how
        assert following.id not in failed
        assert (leaving.id in failed) == (how != "detach")
    assert failed[closing["closing"][0].id].startswith("RunError: MAGIK_SESSION_CLOSED")
    assert bench.notes() == ["read committed"] * len(CLOSED)


def test_one_that_a_job_has_closed_after_its_commit_is_no_failure(bench: Bench) -> None:
    assert bench.run(LeavingBehind(how="committing"), Following()) == {}
    assert bench.notes() == ["committing", "read committed"]


def test_a_connection_left_as_it_was_is_the_same_for_the_next(bench: Bench) -> None:
    query = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE '%performer'"
    bench.run(LeavingBehind(how="nothing"))
    before = bench.ask(query)
    bench.run(*(LeavingBehind(how="nothing") for _ in range(5)))
    assert bench.ask(query) == before
