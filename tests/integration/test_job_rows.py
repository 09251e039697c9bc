"""A job as an object of a Session: loaded, changed, refreshed, merged, deleted, and what stays after a commit."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, ForeignKey, delete, event, inspect, select, text
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship
from sqlalchemy.orm.exc import ObjectDeletedError, StaleDataError

from magik_sa import DeclarationError, EnqueueError, Job, UnknownJob, arg, metadata

T = UUID(int=7)


class Walk(Job, policy="system", queue="walks"):
    idempotent_by = ("tenant_id", "route")
    tenant_id: Mapped[UUID] = arg(default=T)
    route: Mapped[list[str]] = arg(default_factory=list)
    cursor: Mapped[int] = arg(default=0)
    seen: Mapped[dict[str, list[int]]] = arg(default_factory=dict)
    secret: Mapped[str] = arg(default="", sensitive=True)

    def perform(self, session: Session) -> None: ...


class Report(Job, policy="system"):
    """A class with a table of its own: SQLAlchemy's joined inheritance, beside an argument of ours."""

    __tablename__ = "reports"
    job_id: Mapped[UUID] = mapped_column("id", ForeignKey(Job.id, ondelete="CASCADE"), primary_key=True)
    title: Mapped[str]
    pages: Mapped[int] = mapped_column(default=1)
    parent_id: Mapped[UUID | None] = mapped_column(ForeignKey("reports.id"))
    parent: Mapped[Report | None] = relationship(remote_side=[job_id], foreign_keys=[parent_id])
    tenant_id: Mapped[UUID] = arg(default=T)

    def perform(self, session: Session) -> None: ...


class Summary(Report):
    """Inherits the table of its parent."""

    brief: Mapped[bool] = arg(default=True)


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


@pytest.fixture
def job(session: Session) -> Walk:
    job = Walk(route=["a"])
    session.add(job)
    session.commit()
    return job


@pytest.fixture
def statements(engine: Engine) -> list[str]:
    sent: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def record(_c: Any, _cu: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    return sent


def elsewhere(engine: Engine, sql: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(sql))


# After a commit


def test_a_job_stays_readable_after_the_commit_although_its_row_is_gone(
    session: Session, engine: Engine, statements: list[str]
) -> None:
    job = Walk(run_at=datetime(2040, 1, 1, tzinfo=UTC), route=["b"])
    session.add(job)
    session.commit()
    with engine.begin() as connection:
        connection.execute(delete(Job))
    statements.clear()
    assert (job.tenant_id, job.cursor, job.queue, job.run_at.year, job.version) == (T, 0, "walks", 2040, 1)
    assert not session.in_transaction()
    assert (job.error_count, job.finished_at, job.last_error, job.key_digest) == (
        0,
        None,
        None,
        Walk(route=["b"]).key_digest,
    )
    assert str(job.id) in repr(job)
    assert job.route == ["b"]
    assert statements == []


def test_what_the_database_filled_in_is_asked_for_when_it_is_read(session: Session, engine: Engine, job: Walk) -> None:
    assert job.run_at == job.enqueued_at
    session.commit()
    elsewhere(engine, "DELETE FROM magik_jobs")
    assert job.run_at == job.enqueued_at
    other = Walk(route=["c"])
    session.add(other)
    session.commit()
    elsewhere(engine, "DELETE FROM magik_jobs")
    with pytest.raises(ObjectDeletedError):
        _ = other.enqueued_at


def test_a_loaded_job_stays_loaded_over_its_own_commits(session: Session, job: Walk, statements: list[str]) -> None:
    session.expunge_all()
    loaded = session.scalars(select(Walk)).one()
    for cursor in (1, 2, 3):
        loaded.cursor = cursor
        session.commit()
        statements.clear()
        assert (loaded.cursor, loaded.version, loaded.tenant_id) == (cursor, cursor + 1, T)
        assert statements == []
        assert not session.in_transaction()


def test_a_rollback_never_shows_what_was_rolled_back(session: Session, job: Walk) -> None:
    job.cursor = 5
    session.flush()
    session.rollback()
    assert (job.cursor, job.version) == (0, 1)
    job.cursor = 6
    session.rollback()
    assert job.cursor == 0


def test_a_rollback_after_a_commit_reads_the_row_again(session: Session, engine: Engine, job: Walk) -> None:
    elsewhere(engine, "UPDATE magik_jobs SET priority = 3, version = 2")
    assert job.priority == 100
    session.rollback()
    assert job.priority == 100, "nothing was begun, so nothing was rolled back"
    session.execute(select(1))
    session.rollback()
    assert job.priority == 3


def test_the_release_of_a_savepoint_commits_nothing(session: Session, job: Walk) -> None:
    with session.begin_nested():
        job.cursor = 5
    session.rollback()
    assert job.cursor == 0
    job.cursor = 6
    with session.begin_nested():
        job.cursor = 7
    session.commit()
    assert job.cursor == 7
    nested = session.begin_nested()
    job.cursor = 8
    session.flush()
    nested.rollback()
    assert job.cursor == 7
    session.commit()
    assert job.cursor == 7


def test_a_commit_that_fails_keeps_no_copy(session: Session, engine: Engine, job: Walk) -> None:
    elsewhere(engine, "CREATE TABLE t (a int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    job.cursor = 5
    session.execute(text("INSERT INTO t VALUES (1), (1)"))
    with pytest.raises(Exception, match="duplicate key"):
        session.commit()
    session.rollback()
    assert job.cursor == 0


def test_expire_and_refresh_read_the_row(session: Session, engine: Engine, job: Walk) -> None:
    elsewhere(engine, "UPDATE magik_jobs SET priority = 3, args = args || jsonb_build_object('cursor', 9)")
    assert (job.priority, job.cursor) == (100, 0)
    session.expire(job)
    assert (job.priority, job.cursor) == (3, 9)
    elsewhere(engine, "UPDATE magik_jobs SET args = args || jsonb_build_object('cursor', 10)")
    session.refresh(job)
    assert job.cursor == 10
    elsewhere(engine, "DELETE FROM magik_jobs")
    with pytest.raises(InvalidRequestError):
        session.refresh(job)


def test_other_objects_are_expired_as_ever(engine: Engine, job: Walk) -> None:
    with Session(engine, expire_on_commit=False) as session:
        session.add(other := Walk(route=["x"]))
        session.commit()
        assert "_magik_committed" not in other.__dict__
        assert other.cursor == 0


# Changes


def test_a_change_in_place_is_seen_at_the_flush(session: Session, job: Walk) -> None:
    job.seen["a"] = [1]
    session.commit()
    job.seen["a"].append(2)
    session.flush()
    session.refresh(job)
    assert (job.seen, job.version) == ({"a": [1, 2]}, 3)
    job.seen["a"].append(3)
    assert session.scalars(select(Walk.seen)).all() == [{"a": [1, 2, 3]}], "autoflush"


def test_reading_a_list_changes_nothing(session: Session, job: Walk, statements: list[str]) -> None:
    assert (job.seen, job.route) == ({}, ["a"])
    session.flush()
    assert statements == []
    session.commit()
    assert job.version == 1


def test_a_change_in_place_of_a_job_that_is_loaded_again(session: Session, job: Walk) -> None:
    session.expire_all()
    job.seen["x"] = []
    session.commit()
    session.expunge_all()
    again = session.scalars(select(Walk)).one()
    again.seen["x"].append(1)
    session.commit()
    session.expire_all()
    assert again.seen == {"x": [1]}


def test_the_key_of_a_flushed_job_cannot_change(session: Session, job: Walk) -> None:
    with pytest.raises(EnqueueError) as refused:
        job.tenant_id = UUID(int=8)
    assert (refused.value.code, refused.value.field) == ("MAGIK_ARGS_READ_ONLY", "route, tenant_id")
    job.tenant_id = T
    job.route.append("b")
    with pytest.raises(EnqueueError, match="MAGIK_ARGS_READ_ONLY"):
        session.flush()
    job.route.pop()
    job.cursor = 1
    session.commit()
    assert (job.tenant_id, job.route, job.cursor) == (T, ["a"], 1)


def test_the_key_of_a_job_that_was_rolled_back_can_change(session: Session) -> None:
    job = Walk()
    session.add(job)
    session.flush()
    session.rollback()
    job.tenant_id = UUID(int=8)
    session.add(job)
    session.commit()
    assert job.key_digest == Walk(tenant_id=UUID(int=8)).key_digest


def test_every_write_raises_the_version_and_names_the_one_before(session: Session, engine: Engine, job: Walk) -> None:
    job.queue = "other"
    session.commit()
    assert job.version == 2
    elsewhere(engine, "UPDATE magik_jobs SET version = version + 1")
    job.queue = "third"
    with pytest.raises(StaleDataError):
        session.commit()


def test_a_loaded_job_can_be_deleted(session: Session, engine: Engine, job: Walk) -> None:
    session.delete(job)
    session.commit()
    assert session.scalars(select(Job)).all() == []
    assert inspect(job).detached
    assert job.tenant_id == T


def test_a_loaded_job_that_a_worker_has_finished_meanwhile_is_stale(
    session: Session, engine: Engine, job: Walk
) -> None:
    elsewhere(engine, "DELETE FROM magik_jobs")
    job.cursor = 1
    with pytest.raises(StaleDataError):
        session.commit()
    session.rollback()
    again = Walk(route=["b"])
    session.add(again)
    session.commit()
    elsewhere(engine, "DELETE FROM magik_jobs")
    session.delete(again)
    with pytest.raises(StaleDataError):
        session.commit()


def test_a_job_can_be_merged_pickled_and_expunged(session: Session, engine: Engine, job: Walk) -> None:
    session.expunge(job)
    copy = pickle.loads(pickle.dumps(job))
    copy.cursor = 4
    merged = session.merge(copy)
    session.commit()
    assert (merged.id, merged.cursor, merged.version, merged.route) == (job.id, 4, 2, ["a"])
    with Session(engine) as other:
        fresh = other.merge(Walk(route=["new"], secret="quiet"))
        other.commit()
        assert not fresh.is_repeat
        assert other.scalars(select(Walk).where(Walk.route == ["new"])).one() is fresh
        assert "quiet" not in repr(fresh)


def test_merging_what_is_stored_already_copies_its_arguments(session: Session, engine: Engine, job: Walk) -> None:
    with Session(engine) as other:
        loaded = other.scalars(select(Walk)).one()
    session.refresh(job)
    merged = session.merge(loaded)
    assert merged is job
    assert not session.is_modified(merged)


def test_secrets_are_in_no_sql_error(session: Session) -> None:
    one, other = Walk(route=["1"]), Walk(route=["2"], secret="hunter2-is-the-password")
    other.id = one.id
    session.add(one)
    session.flush()
    session.expunge(one)
    session.add(other)
    with pytest.raises(Exception, match="magik_jobs_pkey") as failed:
        session.flush()
    assert "hunter2" not in str(failed.value)


def test_an_older_row_with_what_no_longer_fits_says_so_when_it_is_read(
    session: Session, engine: Engine, job: Walk
) -> None:
    elsewhere(engine, "UPDATE magik_jobs SET args = args || jsonb_build_object('cursor', 'far', 'gone', 1)")
    session.expire(job)
    assert repr(job) == f"<Walk {job.id}>"
    session.refresh(job)
    assert "cursor='far'" in repr(job)
    with pytest.raises(EnqueueError, match="cursor"):
        _ = job.cursor
    job.cursor = 3
    session.commit()
    assert job.args["gone"] == 1


# Unknown classes


def test_an_unknown_job_is_read_only(session: Session, engine: Engine) -> None:
    elsewhere(engine, "INSERT INTO magik_jobs (job_class) VALUES ('Stranger')")
    unknown = session.scalars(select(Job)).one()
    assert isinstance(unknown, UnknownJob)
    id = unknown.id
    unknown.priority = 3
    with pytest.raises(EnqueueError) as refused:
        session.flush()
    assert refused.value.code == "MAGIK_UNKNOWN_JOB_READ_ONLY"
    session.rollback()
    session.delete(unknown)
    with pytest.raises(EnqueueError, match=str(id)):
        session.flush()
    session.rollback()
    session.execute(delete(Job).where(Job.id == id))
    session.commit()


# Tables of their own


@pytest.fixture
def reports(engine: Engine) -> None:
    metadata.create_all(engine, tables=[metadata.tables["reports"]])


def test_a_class_with_a_table_of_its_own_is_joined_inheritance(session: Session, engine: Engine, reports: None) -> None:
    first = Report(title="first", tenant_id=UUID(int=3), run_at=datetime(2040, 1, 1, tzinfo=UTC))
    second = Summary(title="second", pages=2, parent=first, brief=False)
    session.add_all([second, first])
    session.commit()
    assert (first.title, second.parent, second.pages) == ("first", first, 2)
    session.expunge_all()
    found = session.scalars(select(Report).where(Report.title == "second", Report.tenant_id == T)).one()
    assert (type(found), found.parent_id) == (Summary, first.id)
    assert session.scalars(select(Summary).where(Summary.brief.is_(False))).one() is found
    assert {type(job) for job in session.scalars(select(Job))} == {Report, Summary}
    session.execute(delete(Job))
    session.commit()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM reports")).scalar_one() == 0


def test_the_inserts_into_a_table_of_its_own_are_plain_ones(
    session: Session, reports: None, statements: list[str]
) -> None:
    session.add(Report(title="x"))
    session.flush()
    assert ["ON CONFLICT" in statement for statement in statements] == [True, False]


def test_a_class_with_a_table_of_its_own_cannot_be_keyed() -> None:
    with pytest.raises(DeclarationError) as refused:

        class KeyedReport(Report):
            idempotent_by = "tenant_id"

    assert refused.value.code == "MAGIK_IDEMPOTENT_BY_UNSUPPORTED"
