"""Enqueueing is session.add: it commits and rolls back with the rest, and a repeat is no error."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, create_engine, event, func, insert, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, make_transient, mapped_column, scoped_session, sessionmaker

from magik_sa import EnqueueError, Job, arg, bulk_enqueue, once
from magik_sa.table import JobTable

T = UUID(int=7)


class Base(DeclarativeBase):
    """The application's own tables."""


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


class SettleTenant(Job, policy="system", queue="payments", priority=50):
    idempotent_by = "tenant_id"
    tenant_id: Mapped[UUID] = arg()
    note: Mapped[str] = arg(default="")

    def perform(self, session: Session) -> None: ...


class Sweeping(Job, policy="system"):
    idempotent_by = ()
    since: Mapped[int] = arg(default=0)

    def perform(self, session: Session) -> None: ...


class SendMail(Job, policy="system"):
    to: Mapped[str] = arg(default="ada")
    tags: Mapped[list[str]] = arg(default_factory=list)

    def perform(self, session: Session) -> None: ...


@pytest.fixture(autouse=True)
def orders(engine: Engine) -> None:
    Base.metadata.create_all(engine)


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


def rows(engine: Engine, table: str = "magik_jobs") -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


@pytest.fixture
def statements(engine: Engine) -> list[str]:
    """Every statement that is sent from here on."""
    sent: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def _(_c: Any, _cu: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    return sent


def test_a_job_is_a_row_once_its_transaction_has_committed(session: Session, engine: Engine) -> None:
    job = SettleTenant(tenant_id=T)
    session.add_all([Order(), job])
    session.flush()
    assert rows(engine) == 0
    session.commit()
    assert (rows(engine), rows(engine, "orders")) == (1, 1)
    with Session(engine) as other:
        found = other.get_one(SettleTenant, job.id)
        assert (found.tenant_id, found.queue, found.priority, found.version) == (T, "payments", 50, 1)
        assert found.run_at == found.enqueued_at


def test_a_rollback_leaves_no_job(session: Session, engine: Engine) -> None:
    session.add_all([Order(), SendMail()])
    session.flush()
    session.rollback()
    assert (rows(engine), rows(engine, "orders")) == (0, 0)


def test_an_exception_out_of_begin_leaves_no_job(engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError), Session(engine) as session, session.begin():
        session.add_all([Order(), SendMail()])
        session.flush()
        raise ZeroDivisionError
    assert (rows(engine), rows(engine, "orders")) == (0, 0)


def test_a_connection_killed_before_the_commit_leaves_no_job(session: Session, engine: Engine) -> None:
    session.add_all([Order(), SendMail()])
    session.flush()
    pid = session.scalar(select(func.pg_backend_pid()))
    with engine.connect() as other:
        other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
    with pytest.raises(Exception, match="terminat|closed"):
        session.commit()
    session.rollback()
    assert (rows(engine), rows(engine, "orders")) == (0, 0)


def test_a_commit_that_fails_on_a_deferred_constraint_leaves_no_job(session: Session, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE line (id int REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)"))
    session.add(SendMail())
    session.flush()
    session.execute(text("INSERT INTO line VALUES (99)"))
    with pytest.raises(Exception, match="foreign key"):
        session.commit()
    session.rollback()
    assert rows(engine) == 0


def test_a_rolled_back_savepoint_takes_its_job_along(session: Session, engine: Engine) -> None:
    kept, ghost, later = SendMail(to="A"), SendMail(to="B"), SendMail(to="C")
    session.add(kept)
    with pytest.raises(ZeroDivisionError), session.begin_nested():
        session.add(ghost)
        session.flush()
        raise ZeroDivisionError
    session.add(later)
    session.commit()
    assert {job.to for job in session.scalars(select(SendMail))} == {"A", "C"}
    assert ghost not in session
    assert inspect(ghost).transient
    assert session.get(SendMail, ghost.id) is None


def test_a_key_is_free_again_when_its_transaction_rolled_back_after_a_released_savepoint(
    session: Session, engine: Engine
) -> None:
    with session.begin_nested():
        session.add(SettleTenant(tenant_id=T))
    session.rollback()
    again = SettleTenant(tenant_id=T)
    session.add(again)
    session.commit()
    assert not again.is_repeat
    assert rows(engine) == 1


def test_a_repeat_changes_nothing_and_leaves_the_transaction_whole(session: Session, engine: Engine) -> None:
    first = SettleTenant(tenant_id=T, note="first")
    session.add(first)
    session.commit()
    repeat, order = SettleTenant(tenant_id=T, note="second"), Order()
    session.add_all([repeat, order])
    session.commit()
    assert (repeat.is_repeat, repeat.repeat_of, first.is_repeat, first.repeat_of) == (True, first.id, False, None)
    assert inspect(repeat).transient
    assert (repeat.note, repeat.tenant_id) == ("second", T)
    assert (rows(engine), rows(engine, "orders")) == (1, 1)
    session.refresh(first)
    assert (first.note, first.version) == ("first", 1)


def test_with_an_empty_key_there_is_one_live_job_of_the_class(session: Session, engine: Engine) -> None:
    first, again = Sweeping(), Sweeping(since=3)
    session.add_all([first, again])
    session.flush()
    assert (first.is_repeat, again.is_repeat, again.repeat_of) == (False, True, first.id)
    first.since = 2
    session.commit()
    assert bulk_enqueue(session, Sweeping, [{"since": 4}, {}]) == bulk_enqueue(session, [Sweeping()]) == 0
    session.delete(first)
    session.commit()
    assert bulk_enqueue(session, Sweeping, [{"since": 4}, {}]) == 1
    with pytest.raises(EnqueueError, match="MAGIK_ONCE_WITHOUT_KEY: Sweeping has idempotent_by = "):
        once(session, Sweeping(), scope="sweeping")


@pytest.mark.parametrize(
    "when", [{}, {"delay": "10m"}, {"run_at": datetime(2040, 1, 1, tzinfo=UTC)}, {"run_at": func.now()}]
)
def test_a_repeat_is_one_however_it_is_timed(session: Session, when: dict[str, Any]) -> None:
    first, repeat = SettleTenant(tenant_id=T, **when), SettleTenant(tenant_id=T, **when)
    session.add_all([first, repeat])
    session.commit()
    assert sorted([first.is_repeat, repeat.is_repeat]) == [False, True]


def test_fifty_jobs_with_five_repeats_and_an_autoflush_between(session: Session, engine: Engine) -> None:
    waiting = [SettleTenant(tenant_id=UUID(int=number)) for number in range(5)]
    session.add_all(waiting)
    session.commit()
    jobs = [SettleTenant(tenant_id=UUID(int=number)) for number in range(50)]
    session.add_all([Order(), *jobs[:30]])
    assert session.scalar(select(func.count()).select_from(SettleTenant)) == 30
    session.add_all([*jobs[30:], SendMail()])
    session.commit()
    assert [job.is_repeat for job in jobs] == [True] * 5 + [False] * 45
    assert [job.repeat_of for job in jobs[:5]] == [job.id for job in waiting]
    assert rows(engine) == 51
    assert rows(engine, "orders") == 1
    session.add(Order())
    session.commit()


def test_a_repeat_within_one_flush(session: Session, engine: Engine) -> None:
    jobs = [SettleTenant(tenant_id=T) for _ in range(3)]
    session.add_all(jobs)
    session.commit()
    assert sorted(job.is_repeat for job in jobs) == [False, True, True]
    assert rows(engine) == 1
    live = next(job for job in jobs if not job.is_repeat)
    assert {job.repeat_of for job in jobs if job.is_repeat} == {live.id}


def test_a_repeat_can_be_added_again_when_its_key_is_free(session: Session) -> None:
    first, repeat = SettleTenant(tenant_id=T), SettleTenant(tenant_id=T)
    session.add(first)
    session.commit()
    session.add(repeat)
    session.commit()
    session.delete(first)
    session.commit()
    session.add(repeat)
    session.commit()
    assert (repeat.is_repeat, repeat.repeat_of) == (False, None)
    assert session.get(SettleTenant, repeat.id) is repeat


def test_a_repeat_in_a_transaction_that_rolls_back(session: Session, engine: Engine) -> None:
    session.add(SettleTenant(tenant_id=T))
    session.commit()
    repeat = SettleTenant(tenant_id=T)
    session.add(repeat)
    session.flush()
    session.rollback()
    assert inspect(repeat).transient
    session.add(repeat)
    session.commit()
    assert repeat.is_repeat
    assert rows(engine) == 1


def test_a_repeat_within_a_savepoint(session: Session, engine: Engine) -> None:
    session.add(SettleTenant(tenant_id=T))
    session.commit()
    for ends in ("commit", "rollback"):
        repeat = SettleTenant(tenant_id=T)
        nested = session.begin_nested()
        session.add(repeat)
        session.flush()
        getattr(nested, ends)()
        assert (repeat.is_repeat, inspect(repeat).transient) == (True, True)
    session.add(Order())
    session.commit()
    assert (rows(engine), rows(engine, "orders")) == (1, 1)


@pytest.mark.filterwarnings("ignore:.*objects.*parameter of:DeprecationWarning")
def test_a_flush_of_some_objects_takes_the_others_for_no_repeats(session: Session) -> None:
    flushed, waiting = SettleTenant(tenant_id=T), SettleTenant(tenant_id=uuid4())
    session.add_all([flushed, waiting])
    session.flush([flushed])
    assert not waiting.is_repeat
    assert waiting in session.new
    session.commit()
    assert not waiting.is_repeat


@pytest.mark.parametrize("column", ["finished_at", "expired_at"])
def test_a_finished_job_and_a_dead_letter_do_not_block_their_key(session: Session, engine: Engine, column: str) -> None:
    session.add(SettleTenant(tenant_id=T))
    session.commit()
    session.execute(text(f"UPDATE magik_jobs SET {column} = now()"))
    job = SettleTenant(tenant_id=T)
    session.add(job)
    session.commit()
    assert not job.is_repeat
    assert rows(engine) == 2


def test_a_row_of_raw_sql_with_the_key_counts(session: Session, engine: Engine) -> None:
    job = SettleTenant(tenant_id=T)
    with engine.begin() as connection:
        raw = connection.execute(
            text("INSERT INTO magik_jobs (job_class, key_digest) VALUES ('SettleTenant', :key) RETURNING id"),
            {"key": job.key_digest},
        ).scalar_one()
    session.add(job)
    session.commit()
    assert (job.is_repeat, job.repeat_of) == (True, raw)


def test_only_a_flush_with_keys_asks_afterwards(session: Session, statements: list[str]) -> None:
    session.add_all([SendMail(), SendMail()])
    session.flush()
    assert [statement.split()[0] for statement in statements] == ["INSERT"]
    session.add_all([SettleTenant(tenant_id=uuid4()), SettleTenant(tenant_id=uuid4())])
    session.flush()
    assert [statement.split()[0] for statement in statements] == ["INSERT", "INSERT", "SELECT"]


@pytest.mark.parametrize("keys", [3, 150])
def test_the_look_for_many_repeats_uses_no_plan_of_another_day(session: Session, keys: int) -> None:
    """One made while the table was almost empty reads all of it for each key, which few keys can bear."""
    for _ in range(15):
        session.add_all([SettleTenant(tenant_id=UUID(int=number)) for number in range(keys)])
        session.flush()
    plans = text(
        "SELECT custom_plans > 0, generic_plans > 0 FROM pg_prepared_statements"
        " WHERE statement LIKE 'SELECT magik_jobs.id, magik_jobs.job_class%'"
    )
    of_ids_and_of_keys = session.execute(plans).all()
    assert of_ids_and_of_keys == [(True, keys == 3)] * 2


def test_a_flush_without_jobs_is_left_alone(session: Session, statements: list[str]) -> None:
    session.add(Order())
    session.commit()
    assert len(statements) == 1


def test_the_flush_calls_the_insert_of_the_table(
    session: Session, monkeypatch: pytest.MonkeyPatch, statements: list[str]
) -> None:
    """What all of this stands on: were it not so, a repeat would break off the caller's transaction."""
    called: list[JobTable] = []
    original = JobTable.insert

    def insert_of(table: JobTable) -> Any:
        called.append(table)
        return original(table)

    monkeypatch.setattr(JobTable, "insert", insert_of)
    Job.__mapper__._memoized_values.clear()
    session.add(SendMail())
    session.flush()
    assert called == [Job.__table__]
    assert "ON CONFLICT (job_class, key_digest) WHERE key_digest IS NOT NULL" in statements[0]
    assert "RETURNING" not in statements[0]


@pytest.mark.parametrize("kind", ["scoped", "maker", "binds", "psycopg2"])
def test_every_kind_of_session_enqueues(engine: Engine, kind: str) -> None:
    other = create_engine(engine.url.set(drivername="postgresql+psycopg2"))
    sessions: Any = {
        "scoped": scoped_session(sessionmaker(engine)),
        "maker": sessionmaker(engine, class_=type("Own", (Session,), {}), expire_on_commit=False),
        "binds": sessionmaker(binds={Job: engine, Base: engine}),
        "psycopg2": sessionmaker(other),
    }[kind]
    first, repeat = SettleTenant(tenant_id=T, delay="1m"), SettleTenant(tenant_id=T)
    with sessions() as session, session.begin():
        session.add_all([Order(), first, *(SettleTenant(tenant_id=uuid4()) for _ in range(20))])
        session.flush()
        session.add(repeat)
    assert (repeat.is_repeat, repeat.repeat_of) == (True, first.id)
    assert (rows(engine), rows(engine, "orders")) == (21, 1)
    with sessions() as session:
        found = session.scalars(select(SettleTenant).where(SettleTenant.tenant_id == T)).one()
        assert (found.tenant_id, found.key_digest) == (T, repeat.key_digest)
    other.dispose()


@pytest.mark.parametrize(
    "go_round",
    [
        lambda session: session.execute(insert(SendMail), [{"args": {}}, {"args": {}}]),
        lambda session: session.execute(insert(SettleTenant).values(args={})),
        lambda session: session.execute(insert(Job), [{"job_class": "SettleTenant"}]),
        lambda session: session.bulk_insert_mappings(SettleTenant, [{"args": {"tenant_id": str(T)}}]),
        lambda session: session.execute(insert(Job.__table__), [{"job_class": "SettleTenant"}]),
    ],
)
def test_inserts_that_go_round_the_job_are_refused(session: Session, engine: Engine, go_round: Any) -> None:
    with pytest.raises(EnqueueError) as refused:
        go_round(session)
    assert refused.value.code == "MAGIK_USE_BULK_ENQUEUE"
    session.rollback()
    assert rows(engine) == 0


def test_bulk_save_objects_keeps_the_key(session: Session, engine: Engine) -> None:
    session.bulk_save_objects([SettleTenant(tenant_id=T), SettleTenant(tenant_id=T), SendMail()])
    session.commit()
    assert rows(engine) == 2


def test_a_job_added_by_another_listener_keeps_its_key(engine: Engine) -> None:
    class Auditing(Session):
        """An application that adds a job whenever it saves something."""

    @event.listens_for(Auditing, "before_flush")
    def audit(session: Session, *_: Any) -> None:
        session.add(SettleTenant(tenant_id=T))

    for _ in range(2):
        with Auditing(engine) as session, session.begin():
            session.add(Order())
    assert (rows(engine), rows(engine, "orders")) == (1, 2)


def test_a_delay_is_added_to_the_databases_now(session: Session) -> None:
    job = SendMail(delay="1h30m")
    session.add(job)
    session.flush()
    now = session.scalar(select(func.now()))
    assert now is not None
    assert job.run_at == now + timedelta(hours=1, minutes=30)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/St_Johns"])
@pytest.mark.parametrize("offset", [0, 330, -210])
def test_an_instant_stays_what_it_is(engine: Engine, zone: str, offset: int) -> None:
    moment = datetime(2031, 3, 30, 1, 59, 59, 123456, tzinfo=timezone(timedelta(minutes=offset)))
    with Session(engine) as session:
        session.execute(text(f"SET TimeZone = '{zone}'"))
        job = SendMail(run_at=moment)
        session.add(job)
        session.flush()
        session.expire(job)
        assert job.run_at == moment


@pytest.mark.parametrize("run_at", [datetime(2031, 1, 1), date(2031, 1, 1), "2031-01-01T00:00:00Z", 5])  # noqa: DTZ001
def test_what_is_no_instant_is_refused(run_at: Any) -> None:
    with pytest.raises(EnqueueError) as refused:
        SendMail(run_at=run_at)
    assert (refused.value.code, refused.value.field) == ("MAGIK_ARGS_INVALID", "run_at")
    job = SendMail()
    with pytest.raises(EnqueueError):
        job.run_at = run_at


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"delay": 10}, "delay"),
        ({"delay": "10"}, "delay"),
        ({"delay": "-1s"}, "delay"),
        ({"delay": "1m", "run_at": datetime(2031, 1, 1, tzinfo=UTC)}, "delay"),
        ({"priority": 2**15}, "priority"),
        ({"priority": "1"}, "priority"),
        ({"queue": ""}, "queue"),
        ({"queue": "é" * 128}, "queue"),
        ({"queue": "a\0"}, "queue"),
        ({"queue": "\ud800"}, "queue"),
    ],
)
def test_options_of_a_job_are_checked_before_any_sql(given: dict[str, Any], field: str) -> None:
    with pytest.raises(EnqueueError) as refused:
        SendMail(**given)
    assert (refused.value.code, refused.value.field) == ("MAGIK_ARGS_INVALID", field)


def test_the_limits_are_the_databases_limits(session: Session) -> None:
    for job in (SendMail(queue="😀" * 63 + "abc"), SendMail(priority=2**15 - 1), SendMail(priority=-(2**15))):
        session.add(job)
        session.flush()


def test_what_is_changed_in_place_after_adding_is_checked_before_any_sql(
    session: Session, statements: list[str]
) -> None:
    job = SendMail()
    session.add_all([Order(), job])
    job.tags.append("\0")
    with pytest.raises(EnqueueError, match="tags"):
        session.flush()
    assert statements == []
    job.tags.clear()
    session.commit()


def test_arguments_that_did_not_come_through_their_attributes_are_checked(session: Session) -> None:
    job = SendMail()
    job.args = {"to": 5}
    session.add(job)
    with pytest.raises(EnqueueError, match="to"):
        session.flush()
    job.args = {"to": "eve"}
    session.commit()
    assert (job.to, job.tags) == ("eve", [])


def test_a_transient_copy_of_a_finished_job_can_be_added_as_a_new_one(session: Session) -> None:
    job = SendMail()
    session.add(job)
    session.commit()
    session.delete(job)
    session.commit()
    make_transient(job)
    session.add(job)
    session.commit()
    assert session.get(SendMail, job.id) is job


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_where_the_tables_are_missing_the_error_says_how_they_are_made(empty_database: str, driver: str) -> None:
    engine = create_engine(make_url(empty_database).set(drivername=f"postgresql+{driver}"))
    with Session(engine) as session:
        session.add(SettleTenant(tenant_id=UUID(int=1)))
        with pytest.raises(ProgrammingError) as failed:
            session.flush()
        session.rollback()
        with pytest.raises(ProgrammingError) as another:
            session.execute(text("SELECT FROM nothing_of_ours"))
    engine.dispose()
    (note,) = failed.value.__notes__
    assert note.startswith("MAGIK_SCHEMA_MISSING: There is no job table on the search_path.")
    assert "alembic upgrade head" in note
    assert not hasattr(another.value, "__notes__")
