"""Whatever a job does to the Connection that it was lent, the next on its thread gets it as the first did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine, NullPool, create_engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session as OrmSession

from magik_sa import Job
from magik_sa.lent import Lent
from tests.jobs.lending import CLOSED, LEFT, SPOILT, Following, LeavingBehind, Writing
from tests.tools.proxy import Proxy
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


def test_what_a_job_leaves_on_the_servers_side_is_its_own_failure_and_nobody_elses(bench: Bench) -> None:
    """Neither its outcome nor the next job's could be written on that connection."""
    leaving = {how: (LeavingBehind(how=how), Following(), LeavingBehind(how=how, fails=True)) for how in SPOILT}
    failed = bench.run(*(job for three in leaving.values() for job in three), Following())
    said = {how: [failed.pop(job.id, None) for job in jobs] for how, jobs in leaving.items()}
    assert [errors[1:] for errors in said.values()] == [[None, "RuntimeError: as told"]] * 2
    assert 'relation "magik_jobs" does not exist' in (said["a search_path"][0] or "")
    assert "read-only transaction" in (said["read only"][0] or "")
    assert failed == {}
    assert "unrecorded" not in bench.worker.stderr()


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


def test_a_session_that_a_job_has_kept_is_of_no_use_when_it_has_ended(bench: Bench) -> None:
    """Nor to a thread that it has left behind: the Connection is the next job's."""
    assert bench.run(LeavingBehind(how="keeping its Session"), Writing()) == {}
    assert bench.notes() == ["MAGIK_SESSION_CLOSED"]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_where_nothing_can_be_connected_at_first_it_is_when_it_is_wanted_again(database: str, driver: str) -> None:
    """A server that goes away between the boot of a worker and the start of its threads ends none of them."""
    url = make_url(database).set(drivername=f"postgresql+{driver}")
    with Proxy(url.host or "", url.port or 5432) as proxy:
        proxy.refuse()
        lent = Lent(create_engine(url.set(host="127.0.0.1", port=proxy.port), poolclass=NullPool))
        with pytest.raises(OperationalError):
            lent.take()
        assert not lent.is_open()
        lent.renew()
        proxy.accept()
        assert lent.take().scalar(text("SELECT 1")) == 1
        lent.close()
