"""Two workers come to run one job: one of them commits, what the other did goes back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session as OrmSession

from magik_sa import Job
from tests.controls import control
from tests.jobs.ledger import Chunks, Gate, GatedPosting, open_books
from tests.tools.effects import Effects
from tests.tools.proxy import Proxy
from tests.tools.sessions import ONE_KEY, advisory_locks, terminate
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

LEDGER = "tests.jobs.ledger"
PROGRAM = ("-m", "magik_sa.worker")


@pytest.fixture
def app(dsn: str, engine: Engine) -> Iterator[psycopg.Connection[Any]]:
    open_books(engine)
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def add(engine: Engine) -> Callable[..., None]:
    """Adds rows in a transaction of their own."""

    def add(*rows: Job | Gate) -> None:
        with OrmSession(engine) as session, session.begin():
            session.add_all(rows)

    return add


class Rivals:
    """Two workers. The first reaches the server by a proxy, so that its locks can be taken from it while it runs.

    The second is frozen until it is needed, so that the first gets the job.
    """

    def __init__(self, database: str, dsn: str, effects: Effects, stack: ExitStack, program: tuple[str, ...]) -> None:
        self.dsn, self.effects = dsn, effects
        url = make_url(database)
        self.proxy = stack.enter_context(Proxy(url.host or "", url.port or 0))
        proxied = url.set(port=self.proxy.port).render_as_string(hide_password=False)
        self.second = stack.enter_context(WorkerProcess(database, LEDGER, concurrency=1, program=program))
        self.second.wait_ready().stop()
        self.first = stack.enter_context(WorkerProcess(proxied, LEDGER, concurrency=1, program=program))
        self.first.wait_ready()

    def both_run(self, job: UUID) -> None:
        """The first runs the job. Break its locking connection, let the second claim, and mend what was broken."""
        self.second_claims()
        until(lambda: len(self.effects.starts(job)) == 2, what="the second runs the job")
        self.proxy.accept()

    def second_claims(self) -> None:
        """What was broken for that is not mended yet."""
        self.proxy.refuse()
        terminate(self.dsn, f"{self.first.app_name} locker")
        self.second.cont()
        locker = f"{self.second.app_name} locker"
        until(lambda: advisory_locks(self.dsn, locker)[ONE_KEY] == 1, what="the second has the job")


@pytest.fixture
def rivals(database: str, dsn: str, effects: Effects, app: object) -> Iterator[Callable[..., Rivals]]:
    with ExitStack() as stack:
        yield lambda program=PROGRAM: Rivals(database, dsn, effects, stack, program)


def entries(app: psycopg.Connection[Any], job: Job) -> list[tuple[int, int]]:
    """The parts that a job wrote, and how often each."""
    query = "SELECT part, count(*) FROM entries WHERE job_id = %s GROUP BY 1 ORDER BY 1"
    return app.execute(query, (job.id,)).fetchall()


def expect_job_gone(app: psycopg.Connection[Any], dsn: str) -> None:
    until(lambda: app.execute("SELECT count(*) FROM magik_jobs").fetchone() == (0,), 60, what="the job is done")
    until(lambda: advisory_locks(dsn)[ONE_KEY] == 0, what="no job is locked")
    until(lambda: app.execute("SELECT count(*) FROM magik_claims").fetchone() == (0,), what="no job is noted")


def test_of_two_workers_with_one_job_one_commits(
    app: psycopg.Connection[Any], dsn: str, add: Callable[..., None], rivals: Callable[..., Rivals], effects: Effects
) -> None:
    job, two = GatedPosting(), rivals()
    add(job)
    until(lambda: effects.starts(job.id), what="the first runs the job")
    two.both_run(job.id)
    add(Gate(name="open"))
    until(lambda: ends(two.first) and ends(two.second), what="both say how it ended")
    expect_job_gone(app, dsn)
    assert entries(app, job) == [(0, 1)]
    by = {ended: worker for worker in (two.first, two.second) for ended in ends(worker)}
    assert sorted(by) == ["finished", "superseded"]
    assert app.execute("SELECT DISTINCT worker FROM entries").fetchall() == [(by["finished"].pid,)]


def ends(worker: WorkerProcess) -> list[str]:
    """How its runs ended. That a run before was interrupted is said at a beginning, if that one had lasted a while."""
    return re.findall(r"event=job_(?!interrupted)(\w+)", worker.stderr())


def test_of_two_workers_with_one_job_each_part_is_committed_once(
    app: psycopg.Connection[Any], dsn: str, add: Callable[..., None], rivals: Callable[..., Rivals]
) -> None:
    job, two = Chunks(parts=40, pause=0.1), rivals()
    add(job)
    until(lambda: len(entries(app, job)) >= 3, what="three parts")
    two.both_run(job.id)
    expect_job_gone(app, dsn)
    assert entries(app, job) == [(part, 1) for part in range(40)]
    until(lambda: {"superseded", "finished"} <= {*ends(two.first), *ends(two.second)}, what="they say so")
    assert [*ends(two.first), *ends(two.second)].count("finished") == 1


def starts_after_the_loss(two: Rivals, job: Chunks, app: psycopg.Connection[Any], dsn: str) -> int:
    """How often the job is begun once the first knows that it has lost it. No note tells of the first's run."""
    until(lambda: len(entries(app, job)) >= 3, what="three parts")
    app.execute("DELETE FROM magik_claims")  # as a crash of the server does
    with app.transaction():
        app.execute("LOCK TABLE effects IN SHARE MODE")  # the second does not begin: superseded, it would let go
        two.second_claims()
        app.execute("LOCK TABLE entries IN SHARE MODE")  # the first does not come to its end before it knows
        two.proxy.accept()
        two.first.wait_log(r"event=locking_connection_back kept=0 superseded=1", 20)
    until(lambda: len(two.effects.starts(job.id)) >= 2, what="the second runs the job")
    expect_job_gone(app, dsn)
    return len(two.effects.starts(job.id)) - 2


def test_a_run_that_knows_of_its_loss_leaves_the_job_to_the_other(
    app: psycopg.Connection[Any], dsn: str, add: Callable[..., None], rivals: Callable[..., Rivals]
) -> None:
    """It is ahead, and each of its checkpoints would make worthless what the other has begun."""
    job, two = Chunks(parts=60, pause=0.1), rivals()
    add(job)
    assert starts_after_the_loss(two, job, app, dsn) <= 1
    assert entries(app, job) == [(part, 1) for part in range(60)]
    until(lambda: "finished" in ends(two.first) + ends(two.second), what="they say so")
    assert ends(two.first)[0] == "superseded"


def test_without_the_word_the_other_begins_again_and_again(
    app: psycopg.Connection[Any], dsn: str, add: Callable[..., None], rivals: Callable[..., Rivals]
) -> None:
    """The control of the test above."""
    job, two = Chunks(parts=60, pause=0.1), rivals(control("without_the_word"))
    add(job)
    assert starts_after_the_loss(two, job, app, dsn) > 3


def test_without_the_version_parts_are_committed_twice(
    app: psycopg.Connection[Any], add: Callable[..., None], rivals: Callable[..., Rivals]
) -> None:
    """The control of the test above."""
    job, two = Chunks(parts=40, pause=0.1), rivals(control("without_the_version"))
    add(job)
    until(lambda: len(entries(app, job)) >= 3, what="three parts")
    two.both_run(job.id)
    until(lambda: any(count > 1 for _, count in entries(app, job)), what="a part that was committed twice")


def test_each_part_is_committed_once_although_workers_are_killed(
    app: psycopg.Connection[Any], database: str, dsn: str, add: Callable[..., None], effects: Effects
) -> None:
    job = Chunks(parts=60, pause=0.1)
    with ExitStack() as stack:
        workers = [stack.enter_context(WorkerProcess(database, LEDGER, concurrency=1)) for _ in range(4)]
        by_pid = {worker.wait_ready().pid: worker for worker in workers}
        add(job)
        for n in range(1, 4):
            until(lambda n=n: len(effects.starts(job.id)) == n, what=f"start {n}")  # type: ignore[misc]
            until(lambda n=n: len(entries(app, job)) >= 6 * n, what=f"{6 * n} parts")  # type: ignore[misc]
            by_pid[effects.rows()[-1].pid].kill()
        expect_job_gone(app, dsn)
    assert entries(app, job) == [(part, 1) for part in range(60)]
    assert len(effects.starts(job.id)) == 4
