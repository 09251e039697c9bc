"""Job classes with a table of their own: SQLAlchemy's joined inheritance goes on working."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, ForeignKey, Table, create_engine, delete, select, text
from sqlalchemy.orm import Mapped, mapped_column, selectinload
from sqlalchemy.orm import Session as OrmSession

from magik_sa import DeclarationError, Job, arg
from magik_sa.table import JobTable
from tests.jobs.tables import Customer, Letter, Registered, make
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess


@pytest.fixture(autouse=True)
def tables(engine: Engine) -> None:
    make(engine)
    with OrmSession(engine) as session, session.begin():
        session.add(Customer(id=1, name="Ada"))


def rows(engine: Engine, query: str) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(text(query)))


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_job_is_enqueued_and_read_with_its_own_columns(engine: Engine, driver: str) -> None:
    own = create_engine(engine.url.set(drivername=f"postgresql+{driver}"))
    with OrmSession(own) as session, session.begin():
        job = Letter(customer_id=1, subject="Hello", fails=2)
        other = Registered(customer=session.get_one(Customer, 1), subject="Bill")
        session.add_all([job, other])
    assert (job.subject, job.fails, other.customer_id) == ("Hello", 2, 1)  # readable after the commit
    with OrmSession(own) as session:
        found = session.scalars(select(Letter).where(Letter.subject == "Hello", Letter.fails == 2)).one()
        assert (found.id, found.customer.name) == (job.id, "Ada")
        everything = session.scalars(select(Job).options(selectinload(Letter.customer)).order_by(Job.id)).all()
        assert [type(each) for each in everything] == [Letter, Registered]
    own.dispose()


def test_a_job_is_cancelled_with_its_row(engine: Engine) -> None:
    with OrmSession(engine) as session, session.begin():
        session.add_all([Letter(customer_id=1, subject=subject) for subject in ("a", "b", "c")])
    with OrmSession(engine) as session, session.begin():
        first, second, _ = session.scalars(select(Letter).order_by(Letter.subject))
        session.delete(first)
        session.flush()
        session.execute(delete(Job).where(Job.id == second.id))
    assert rows(engine, "SELECT subject FROM letters") == [("c",)]
    assert rows(engine, "SELECT count(*) FROM magik_jobs") == [(1,)]


def test_a_rollback_leaves_neither_row(engine: Engine) -> None:
    with OrmSession(engine) as session:
        session.add(Letter(customer_id=1, subject="a"))
        session.flush()
        session.rollback()
    assert rows(engine, "SELECT id FROM letters UNION ALL SELECT id FROM magik_jobs") == []


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_worker_performs_and_finishes_it(database: str, engine: Engine, driver: str) -> None:
    """Its columns load, what it saved on the way stays when it fails, and its row goes with the job or stays."""
    with OrmSession(engine) as session, session.begin():
        session.add_all([Letter(customer_id=1, subject="abc"), Letter(customer_id=1, subject="abcde", fails=1)])
        session.add(Registered(customer_id=1, subject="kept"))
    url = database.replace("+psycopg:", f"+{driver}:")
    options: dict[str, Any] = {"database_url": url, "queue": "letters", "concurrency": 1}
    with WorkerProcess(database, "tests.jobs.tables", **options) as worker:
        worker.wait_ready()
        until(lambda: rows(engine, "SELECT count(*) FROM magik_jobs WHERE finished_at IS NULL") == [(0,)])
        assert worker.terminate() == 0
    assert rows(engine, "SELECT subject, sent FROM letters JOIN magik_jobs USING (id)") == [("kept", 1)]
    assert rows(engine, "SELECT letters FROM customers") == [(3 + 1000 + 5 + 5 + 2000 + 4 + 1000,)]


def test_the_table_is_a_plain_one() -> None:
    assert type(Letter.__table__) is Table
    assert type(Job.__table__) is JobTable


def test_what_cannot_work_is_refused_while_the_class_is_made() -> None:
    with pytest.raises(DeclarationError, match="MAGIK_IDEMPOTENT_BY_UNSUPPORTED"):

        class Keyed(Job, policy="system"):
            __tablename__ = "keyed"
            idempotent_by = "number"
            id: Mapped[UUID] = mapped_column(ForeignKey(Job.id, ondelete="CASCADE"), primary_key=True)
            number: Mapped[int] = arg()

            def perform(self, session: OrmSession) -> None: ...

    with pytest.raises(DeclarationError, match="MAGIK_COLUMN_WITHOUT_TABLE"):

        class Columns(Job, policy="system"):
            number: Mapped[int] = mapped_column()

            def perform(self, session: OrmSession) -> None: ...

    with pytest.raises(DeclarationError, match="MAGIK_IDEMPOTENT_BY_UNSUPPORTED"):

        class KeyedBelow(Letter, policy="system"):
            idempotent_by = "fails"
