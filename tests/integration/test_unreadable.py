"""An application reads rows that somebody has written by hand, and those beside them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, delete, func, make_url, select, text, union
from sqlalchemy.orm import Session

from magik_sa import EnqueueError, Job
from magik_sa.recurring import resume
from magik_sa.testing import drain
from magik_sa.unreadable import EARLIEST, LATEST
from tests.jobs.picky import Picky

INSERT = text("""
INSERT INTO magik_jobs (job_class, args, run_at, enqueued_at, failed_at, context)
VALUES (:cls, CAST(:args AS jsonb), CAST(:at AS timestamptz), CAST(:at AS timestamptz), CAST(:at AS timestamptz),
        CAST(:context AS jsonb)) RETURNING id""")
SCHEDULE = text("""
INSERT INTO magik_job_schedules
VALUES ('a', 'b', CAST(:declaration AS jsonb), CAST(:at AS timestamptz), NULL, 'infinity')""")
DEEP = "[" * 10_000 + "]" * 10_000
HUGE = f'{{"number": 1{"0" * 5000}}}'


@pytest.fixture(params=["psycopg", "psycopg2"])
def session(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Session]:
    """A Session of the application's, on either driver."""
    url = make_url(engine.url).set(drivername=f"postgresql+{request.param}")
    own = create_engine(url)
    with Session(own) as session:
        yield session
    own.dispose()


def by_hand(session: Session, at: str = "now", args: str = '{"number": 1}', **columns: str) -> UUID:
    values = {"cls": "Picky", "context": None, "at": at, "args": args, **columns}
    id: UUID = session.execute(INSERT, values).scalar_one()
    return id


READ = {
    "infinity": LATEST,
    "294276-12-31 23:59:59+00": LATEST,
    "9999-12-31 23:59:59-12": LATEST,
    "-infinity": EARLIEST,
    "4713-01-01 BC": EARLIEST,
    "0001-01-01 00:00:00+00": EARLIEST,
    "2026-01-02 03:04:05.678901+00": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
}
KEPT = text("SELECT run_at = CAST(:at AS timestamptz) FROM magik_jobs WHERE id = :id")


def test_a_time_is_read_as_near_as_python_comes_to_it(session: Session) -> None:
    for at, read in READ.items():
        id = by_hand(session, at)
        job = session.get(Picky, id)
        assert job is not None
        assert (job.run_at, job.enqueued_at, job.failed_at, job.finished_at) == (read, read, read, None)
        session.refresh(job)
        assert session.execute(select(Job.run_at, Job.expired_at)).all() == [(read, None)]
        assert session.execute(select(Job.__table__)).one().run_at == read
        assert session.scalar(select(func.max(Job.run_at))) == read
        assert session.scalar(union(select(Job.run_at), select(Job.failed_at))) == read
        job.priority = 5
        session.commit()
        assert session.scalar(KEPT, {"at": at, "id": id}) is True  # what was read is not written back
        session.delete(job)


def test_times_are_compared_and_ordered_as_they_are(session: Session) -> None:
    ids = [by_hand(session, at) for at in ("-infinity", "2026-01-01", "infinity")]
    in_order = select(Picky).order_by(Picky.run_at)
    assert [job.id for job in session.scalars(in_order)] == ids
    assert [
        job.id for job in session.scalars(select(Picky).where(Picky.run_at < datetime(1, 1, 2, tzinfo=UTC)))
    ] == ids[:1]
    assert session.scalars(select(Picky.id).where(Picky.run_at - timedelta(days=1) > func.now())).all() == ids[2:]
    session.execute(delete(Picky).where(Picky.id != ids[1]))
    rows = session.execute(select(Picky.id, Picky.run_at).distinct().order_by(Picky.run_at)).all()
    assert [row.id for row in rows] == ids[1:2]


@pytest.mark.parametrize("args", [HUGE, f'{{"data": {{"a": {DEEP}}}}}'])
def test_json_that_python_cannot_hold_is_told_of_when_it_is_looked_at(session: Session, args: str) -> None:
    id, other = by_hand(session, args=args), by_hand(session, context=f'{{"a": {DEEP}}}')
    jobs = {job.id: job for job in session.scalars(select(Picky))}
    assert jobs[other].number == 1
    assert repr(jobs[id]) == f"<Picky {id} queue='default'>"
    with pytest.raises(EnqueueError, match="MAGIK_ARGS_INVALID: args: cannot be read"):
        _ = jobs[id].number
    jobs[id].priority = 7
    session.commit()
    kept = session.execute(
        text("SELECT args = CAST(:args AS jsonb), priority FROM magik_jobs WHERE id = :id"), {"args": args, "id": id}
    )
    assert kept.one() == (True, 7)
    session.delete(jobs[id])
    session.commit()
    assert session.scalars(select(Picky)).one().id == other


def test_a_row_of_a_class_nobody_declared_is_read_whatever_its_name(session: Session) -> None:
    for name in ("\x1b[2J\r\n", "%s %(x)s {} :name", "\u202e\u200b\u2028", "'; DROP TABLE magik_jobs; --"):
        by_hand(session, "infinity", HUGE, cls=name)
    shown = [repr(job) for job in session.scalars(select(Job))]
    assert len(shown) == 4
    assert all(each.isprintable() for each in shown)


def test_drain_runs_what_is_due_of_them(session: Session) -> None:
    ids = {by_hand(session, at) for at in ("-infinity", "4713-01-01 BC", "now")}
    by_hand(session, "infinity")
    broken = by_hand(session, args=HUGE)
    ran = drain(session)
    assert {each.id for each in ran} == ids | {broken}
    assert [str(each.error)[:45] for each in ran if each.id == broken] == [
        "MAGIK_ARGS_INVALID: args: cannot be read (Val"
    ]


TIMES = ("infinity", "-infinity", "4713-01-01 BC", "294276-01-01")
DECLARATIONS = ("{}", '{"every": []}', '{"x": 1}', '{"cron": "x", "zone": "y"}', HUGE)


def test_a_schedule_by_hand_is_resumed(session: Session) -> None:
    """Where its row says nothing from which a next tick could be told, the one that it has stays."""
    for at, declaration in product(TIMES, DECLARATIONS):
        given = {"at": at, "declaration": declaration}
        session.execute(SCHEDULE, given)
        assert resume(session, "a")
        kept = text("DELETE FROM magik_job_schedules RETURNING next_run_at = CAST(:at AS timestamptz)")
        assert session.scalar(kept, given) is True
