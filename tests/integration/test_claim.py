"""The claim's SQL on a real server: as many locks as rows, the truth read again, notes and keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from magik_sa import claim, names, wake
from magik_sa.claim import Busy, Claimed, Claims, walk
from magik_sa.claim.unserved import unserved
from magik_sa.server import connect_locking
from tests.tools.sessions import ONE_KEY, advisory_locks
from tests.tools.waiting import until

NOBODY = Busy((), ())


def ids(jobs: list[Claimed]) -> list[UUID]:
    return [job.id for job in jobs]


class Locking:
    """A worker's locking connection, without the worker."""

    def __init__(self, dsn: str, app_name: str) -> None:
        self.dsn, self.app_name = dsn, app_name
        self.connection = connect_locking(dsn, app_name)
        found = names.find(self.connection, None)
        self.claims = Claims(
            self.connection, found, wake.register(self.connection, found, app_name, ["default"]), app_name
        )

    @property
    def locks(self) -> int:
        return advisory_locks(self.dsn, f"{self.app_name} locker")[ONE_KEY]

    def die(self) -> None:
        """The session ends without a word, as when its process is killed; return when its locks are free."""
        self.connection.close()
        until(lambda: self.locks == 0)

    def take(self, n: int, busy: Busy = NOBODY) -> claim.Batch:
        return self.claims.claim("default", n, ["Known"], busy)


@pytest.fixture
def one(dsn: str) -> Iterator[Locking]:
    locking = Locking(dsn, "one")
    yield locking
    locking.connection.close()


@pytest.fixture
def two(dsn: str) -> Iterator[Locking]:
    locking = Locking(dsn, "two")
    yield locking
    locking.connection.close()


def fill(app: psycopg.Connection[Any], n: int, cls: str = "Known") -> None:
    app.execute("INSERT INTO magik_jobs (job_class) SELECT %s FROM generate_series(1, %s)", (cls, n))


def force_sort(app: psycopg.Connection[Any]) -> None:
    """Leave the planner nothing but a sequential scan and a sort."""
    app.execute("DROP INDEX magik_jobs_claim")


def test_as_many_locks_as_rows(app: psycopg.Connection[Any], one: Locking) -> None:
    fill(app, 500)
    assert len(one.take(50).jobs) == one.locks == 50


def test_as_many_locks_as_rows_when_the_plan_sorts(app: psycopg.Connection[Any], one: Locking) -> None:
    fill(app, 500)
    force_sort(app)
    assert len(one.take(50).jobs) == one.locks == 50


def test_without_the_fence_a_sort_locks_every_row(
    app: psycopg.Connection[Any], one: Locking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above."""
    monkeypatch.setattr(walk, "WALK", walk.WALK.replace("OFFSET 0", ""))
    fill(app, 500)
    force_sort(app)
    assert len(one.claims.walks.walk("default", 50, ["Known"], [])) == 50
    assert one.locks == 500


def test_two_workers_share_the_rows(app: psycopg.Connection[Any], one: Locking, two: Locking) -> None:
    fill(app, 80)
    first, second = one.take(50), two.take(50)
    assert (len(first.jobs), len(second.jobs)) == (50, 30)
    assert not {job.id for job in first.jobs} & {job.id for job in second.jobs}


def test_own_jobs_are_not_claimed_again(app: psycopg.Connection[Any], one: Locking) -> None:
    """Session locks are re-entrant: the server would give this session the same rows again."""
    fill(app, 3)
    held = [job.id for job in one.take(3).jobs]
    assert one.take(3, Busy(held, ())).jobs == []
    assert one.locks == 3


def test_order_is_priority_then_time(app: psycopg.Connection[Any], one: Locking) -> None:
    app.execute("""
        INSERT INTO magik_jobs (job_class, priority, run_at)
        VALUES ('Known', 100, now() - interval '1 h'), ('Known', 10, now()), ('Known', 100, now() - interval '2 h'),
               ('Known', 1, now() + interval '1 h')""")
    rows = [job.row for job in one.take(10).jobs]
    assert [row["priority"] for row in rows] == [10, 100, 100]
    assert rows[1]["run_at"] < rows[2]["run_at"]


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM magik_jobs",
        "UPDATE magik_jobs SET finished_at = now()",
        "UPDATE magik_jobs SET expired_at = now()",
        "UPDATE magik_jobs SET run_at = now() + interval '1 h'",
        "UPDATE magik_jobs SET job_class = 'Unknown'",
    ],
)
def test_what_changed_between_walk_and_reread_is_dropped(
    app: psycopg.Connection[Any], one: Locking, change: Any
) -> None:
    """The walk's snapshot is older than its locks: only the second statement tells the truth."""
    fill(app, 5)
    ids = one.claims.walks.walk("default", 5, ["Known"], [])
    assert one.locks == 5
    app.execute(change)
    assert one.claims.reread(ids, ["Known"], ()).jobs == []
    assert one.locks == 0
    assert app.execute("SELECT count(*) FROM magik_claims").fetchone() == (0,)


def test_rows_of_unknown_classes_cost_no_lock(app: psycopg.Connection[Any], one: Locking) -> None:
    fill(app, 20, "Unknown")
    fill(app, 1)
    assert len(one.take(10).jobs) == one.locks == 1
    assert unserved(one.connection, one.claims.names, ["default"], ["Known"]) == ["Unknown"]


def test_release_leaves_nothing(app: psycopg.Connection[Any], one: Locking) -> None:
    fill(app, 5)
    one.claims.release(one.take(5).jobs)
    assert one.locks == 0
    assert app.execute("SELECT count(*) FROM magik_claims").fetchone() == (0,)


def test_a_lock_that_was_not_held_is_told(app: psycopg.Connection[Any], one: Locking) -> None:
    fill(app, 1)
    jobs = one.take(1).jobs
    one.connection.execute("SELECT pg_advisory_unlock_all()")
    with pytest.raises(claim.LockLost):
        one.claims.release(jobs)


# ---- keys


def twins(app: psycopg.Connection[Any]) -> None:
    """Two live rows of one key, as only a missing index lets them be."""
    app.execute("DROP INDEX magik_jobs_key")
    app.execute(r"INSERT INTO magik_jobs (job_class, key_digest) VALUES ('Known', '\x01'), ('Known', '\x01')")


def test_twins_of_a_key_do_not_run_beside_each_other_here(app: psycopg.Connection[Any], one: Locking) -> None:
    twins(app)
    batch = one.take(2)
    assert (len(batch.jobs), len(batch.refused)) == (1, 1)
    assert one.locks == 2  # the job and its key
    again = one.take(1, Busy([batch.jobs[0].id], [batch.jobs[0].key_lock or 0]))
    assert (again.jobs, ids(again.refused)) == ([], ids(batch.refused))
    one.claims.release(batch.jobs)
    assert one.locks == 0
    assert ids(one.take(2).jobs)[:1] in (ids(batch.jobs), ids(batch.refused))


def test_twins_of_a_key_do_not_run_beside_each_other_elsewhere(
    app: psycopg.Connection[Any], one: Locking, two: Locking
) -> None:
    twins(app)
    first = one.take(1)
    second = two.take(2)
    assert (len(first.jobs), second.jobs, len(second.refused)) == (1, [], 1)
    assert two.locks == 0
    one.claims.release(first.jobs)
    app.execute("DELETE FROM magik_jobs WHERE id = %s", (first.jobs[0].id,))
    assert len(two.take(2).jobs) == 1


# ---- notes


def noted(app: psycopg.Connection[Any]) -> list[tuple[UUID, str, bool]]:
    return app.execute("SELECT job_id, worker, begun FROM magik_claims ORDER BY 1").fetchall()


def test_a_dead_workers_notes_tell_the_next_holder(app: psycopg.Connection[Any], one: Locking, two: Locking) -> None:
    fill(app, 3)
    jobs = one.take(3).jobs
    assert not any(job.interrupted or job.suspect for job in jobs)
    one.claims.notes.begun([jobs[0].id])
    one.die()
    again = {job.id: job for job in two.take(3).jobs}
    assert [again[job.id].interrupted for job in jobs] == [True, False, False]
    assert [again[job.id].suspect for job in jobs] == [False, True, True]
    assert {(id, worker, begun) for id, worker, begun in noted(app)} == {
        (job.id, "two", job.id == jobs[0].id) for job in jobs
    }


def test_a_recorded_failure_is_no_interruption(app: psycopg.Connection[Any], one: Locking, two: Locking) -> None:
    """Killed between the commit of a failure and the delete of its note."""
    fill(app, 1)
    one.claims.notes.begun([one.take(1).jobs[0].id])
    app.execute("UPDATE magik_jobs SET failed_at = clock_timestamp(), error_count = 1")
    one.die()
    assert [(job.interrupted, job.suspect) for job in two.take(1).jobs] == [(False, True)]


def test_given_back_a_suspect_stays_one(app: psycopg.Connection[Any], one: Locking, two: Locking) -> None:
    fill(app, 2)
    began = one.take(2).jobs[0]
    one.claims.notes.begun([began.id])
    one.die()
    taken = two.take(2).jobs
    two.claims.notes.begun([job.id for job in taken])
    two.claims.give_back(taken)
    assert two.locks == 0
    again = {job.id: job.interrupted for job in two.take(2).jobs}
    assert again == {job.id: job.id == began.id for job in taken}


def test_after_a_reconnect_jobs_are_taken_again_unless_stolen(
    app: psycopg.Connection[Any], one: Locking, two: Locking, dsn: str
) -> None:
    fill(app, 4)
    jobs = one.take(4).jobs
    one.die()
    stolen = {job.id for job in two.take(2).jobs}
    back = Locking(dsn, "back")
    ours = back.claims.take_again(jobs, [one.claims.owner])
    assert ours == {job.id for job in jobs} - stolen
    assert back.locks == 2
    back.claims.release([job for job in jobs if job.id in ours])
    assert back.locks == 0
    assert {worker for _, worker, _ in noted(app)} == {"two"}
    back.connection.close()


def test_after_a_crash_of_the_server_which_empties_the_notes_jobs_are_taken_again(
    app: psycopg.Connection[Any], one: Locking, two: Locking, dsn: str
) -> None:
    """Not those that another worker has by now, or had when it died: of these there is a note."""
    fill(app, 4)
    jobs = one.take(4).jobs
    one.die()
    app.execute("TRUNCATE magik_claims")
    died = two.take(1).jobs[0].id
    two.die()
    three = Locking(dsn, "three")
    known = {died, *(job.id for job in three.claims.claim("default", 2, ["Known"], Busy([died], ())).jobs)}
    back = Locking(dsn, "back")
    ours = back.claims.take_again(jobs, [one.claims.owner])
    assert ours == {job.id for job in jobs} - known
    assert back.locks == len(ours) == 1
    assert {(worker, begun) for id, worker, begun in noted(app) if id in ours} == {("back", True)}
    three.connection.close()
    back.connection.close()
