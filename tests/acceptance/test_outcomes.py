"""How a job ends: gone, kept, tried again by the published table, or a dead letter whose on_failure ran once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from psycopg import Connection
from psycopg.rows import DictRow, dict_row
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import sessionmaker

from magik_sa import Job, context
from tests.jobs.outcomes import Advancing, Asking, Carrying, Discarding, Failing, FailingTwice, Jittery, Kept
from tests.tools.effects import Effects
from tests.tools.waiting import never, until
from tests.tools.workers import WorkerProcess

HISTORY = """
CREATE TABLE history (seq serial PRIMARY KEY, was magik_jobs NOT NULL);
CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO history (was) VALUES (new); RETURN NULL; END $$;
CREATE TRIGGER remember AFTER UPDATE ON magik_jobs FOR EACH ROW EXECUTE FUNCTION remember()"""


class House:
    """A worker of these jobs, and the tables it works on."""

    def __init__(self, database: str, dsn: str, sessions: sessionmaker[OrmSession], effects: Effects) -> None:
        self.database, self.effects, self._sessions = database, effects, sessions
        self.connection = Connection[DictRow].connect(dsn, autocommit=True, row_factory=dict_row)
        self.connection.execute("CREATE TABLE notes (seq serial PRIMARY KEY, note text NOT NULL)")
        self.connection.execute(HISTORY)

    @contextmanager
    def worker(self) -> Iterator[WorkerProcess]:
        """Works until the block ends; then it has to drain."""
        with WorkerProcess(self.database, "tests.jobs.outcomes", concurrency=1, poll_interval="500ms") as worker:
            yield worker.wait_ready()
            assert worker.terminate() == 0

    def add(self, *jobs: Job) -> None:
        """Enqueue."""
        with self._sessions.begin() as session:
            session.add_all(jobs)

    def row(self, job: Job) -> dict[str, Any] | None:
        """The job's row as it is now."""
        return self.connection.execute("SELECT * FROM magik_jobs WHERE id = %s", [job.id]).fetchone()

    def finished(self, job: Job) -> None:
        """Wait until the job is done and kept."""
        until(lambda: (self.row(job) or {}).get("finished_at"), what=f"{job!r} finished")

    def failures(self, job: Job) -> list[dict[str, Any]]:
        """What the job's row was each time that it was written."""
        query = "SELECT (was).* FROM history WHERE (was).id = %s ORDER BY seq"
        return self.connection.execute(query, [job.id]).fetchall()

    def expired(self, job: Job) -> dict[str, Any]:
        """The job's row, once it is a dead letter and nothing more is written to it."""
        until(lambda: (self.row(job) or {}).get("expired_at"), what=f"{job!r} expired")
        until(lambda: not self._claimed(job), what="its on_failure has ended")
        row = self.row(job)
        assert row is not None
        return row

    def gone(self, job: Job) -> None:
        """Wait until the job is done."""
        until(lambda: self.row(job) is None, what=f"{job!r} is done")

    def notes(self) -> list[str]:
        """What was written through Sessions, and committed."""
        return [row["note"] for row in self.connection.execute("SELECT note FROM notes ORDER BY seq")]

    def _claimed(self, job: Job) -> bool:
        return bool(self.connection.execute("SELECT FROM magik_claims WHERE job_id = %s", [job.id]).rowcount)


@pytest.fixture
def house(database: str, dsn: str, Session: sessionmaker[OrmSession], effects: Effects) -> Iterator[House]:
    """Where jobs are added, worked and looked at."""
    house = House(database, dsn, Session, effects)
    yield house
    house.connection.close()


def test_a_kept_job_stays_with_the_time_of_its_end_and_is_not_run_again(house: House) -> None:
    jobs = [Kept(number=1), Kept(number=2)]
    with house.worker():
        house.add(*jobs)
        for job in jobs:
            house.finished(job)
    for job in jobs:
        row = house.row(job) or {}
        assert row["enqueued_at"] <= row["finished_at"]
        assert (row["error_count"], row["last_error"], row["expired_at"], row["version"]) == (0, None, None, 2)
    with house.worker():  # another worker, and a wake-up
        house.add(again := Kept(number=1))
        assert not again.is_repeat
        until(lambda: (house.row(again) or {}).get("finished_at"), what="the key was free again")
        never(lambda: house.effects.repeats(), during=1.0)
    assert house.notes() == ["kept"] * 3


def test_a_failing_job_starts_once_more_than_its_retries_and_waits_by_the_table(house: House) -> None:
    job, waits = Failing(), []
    with house.worker():
        house.add(job)
        row = house.expired(job)
        never(lambda: len(house.effects.starts(job.id)) > 3, during=1.0)
    *failures, _ = house.failures(job)
    for tries, failed in enumerate(failures, 1):
        waits.append(failed["run_at"] - failed["failed_at"])
        assert (failed["error_count"], failed["expired_at"]) == (tries, None)
        assert failed["last_error"].startswith(f"ValueError: try {tries}\n")
    assert waits == [timedelta(milliseconds=400), timedelta(milliseconds=800)]
    starts = house.effects.starts(job.id)
    assert [start.note for start in starts] == ["0", "1", "2"]
    gaps = [later.started - start.started for start, later in itertools.pairwise(starts)]
    assert all(gap >= wait for gap, wait in zip(gaps, waits, strict=True))
    assert (row["error_count"], row["failed_at"]) == (3, row["expired_at"])
    told = row["last_error"]
    assert told.startswith("ValueError: try 3\n")
    assert 'outcomes.py", line' in told
    assert "in perform" in told
    assert "caused by KeyError: 'the first reason'" in told
    assert house.notes() == ["on_failure ValueError: try 3 after 3"]  # and nothing of the runs that failed


def test_the_share_of_a_wait_that_is_left_to_chance_is_taken_off_it(house: House) -> None:
    jobs = [Jittery() for _ in range(20)]
    with house.worker():
        house.add(*jobs)
        until(lambda: all((house.row(job) or {})["error_count"] == 1 for job in jobs), what="all failed once")
    waits = [row["run_at"] - row["failed_at"] for row in map(house.row, jobs) if row]
    assert timedelta(seconds=10) <= min(waits) < max(waits) <= timedelta(seconds=20)
    assert len(set(waits)) == len(jobs)


def test_what_discard_on_names_ends_a_job_at_once(house: House) -> None:
    jobs = [Discarding(long=False), Discarding(long=True)]
    with house.worker():
        house.add(*jobs)
        rows = [house.expired(job) for job in jobs]
    assert [row["error_count"] for row in rows] == [1, 1]
    assert [row["last_error"].splitlines()[0] for row in rows] == ["Gone: just now", "LongGone: by years"]
    assert [len(house.effects.starts(job.id)) for job in jobs] == [1, 1]
    assert sorted(house.notes()) == ["on_failure Gone", "on_failure LongGone"]


def test_an_on_failure_that_fails_is_recorded_beside_the_jobs_error(house: House) -> None:
    jobs = {"LookupError: in on_failure": FailingTwice(leaving=False), "SystemExit: 3": FailingTwice(leaving=True)}
    with house.worker():
        house.add(*jobs.values())
        rows = {second: house.expired(job) for second, job in jobs.items()}
        house.add(marker := Asking(answer="yes"))
        house.gone(marker)
    for second, row in rows.items():
        first, also = row["last_error"].split("on_failure then raised ")
        assert first.startswith("ValueError: in perform\n")
        assert also.startswith(second)
        assert row["error_count"] == 1
    for job in jobs.values():
        assert [start.note for start in house.effects.starts(job.id)] == ["", "on_failure"]
    assert house.notes() == ["asked yes"]


def test_what_was_committed_on_the_way_is_what_the_next_try_and_on_failure_see(house: House) -> None:
    with house.worker():
        house.add(job := Advancing())
        row = house.expired(job)
    assert [start.note for start in house.effects.starts(job.id)] == ["0", "1"]
    assert house.notes() == ["step 0", "step 1", "came to 2 in 2 tries"]
    assert (row["args"], row["error_count"]) == ({"at": 2}, 2)


def test_a_policy_that_says_no_ends_the_job_and_one_that_fails_is_a_failed_try(house: House) -> None:
    yes, no, failing = Asking(answer="yes"), Asking(answer="no"), Asking(answer="raise")
    with house.worker():
        house.add(yes, no, failing)
        house.gone(yes)
        denied, failed = house.expired(no), house.expired(failing)
    assert denied["last_error"].startswith("RunError: MAGIK_POLICY_DENIED: ")
    assert (denied["error_count"], failed["error_count"]) == (1, 2)
    assert failed["last_error"].startswith("ValueError: the policy itself failed\n")
    assert [effect.note for effect in house.effects.rows()] == ["yes"]
    assert sorted(house.notes()) == ["asked no", "asked yes", "on_failure no", "on_failure raise"]


def test_what_was_set_when_a_job_was_built_is_there_when_it_runs_and_travels_on(house: House) -> None:
    token = context.set({"actor": "ada"})
    job = Carrying()
    context.reset(token)
    with house.worker():
        house.add(job)
        until(lambda: len(house.notes()) == 2, what="the job and the one that it added have run")
        house.add(Carrying(again=False))
        until(lambda: len(house.notes()) == 3, what="a job that nothing travels with has run")
    assert house.notes() == ["carried {'actor': 'ada'}"] * 2 + ["carried {}"]
