"""The kit for an application's tests: the same promises with a Session, in a transaction rolled back, and committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, create_engine, delete, make_url, select, text, update
from sqlalchemy.exc import DataError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import scoped_session, sessionmaker

from magik_sa import BootError, DeclarationError, EnqueueError, Job, JobTimeout, KitError, RunError, Snooze, context
from magik_sa.job import _declared
from magik_sa.testing import Clock, Outcome, drain, enqueued, perform
from tests.jobs.kit import (
    Account,
    Archived,
    Base,
    Closed,
    Deposit,
    Divided,
    Escorted,
    Hasty,
    Jostled,
    Lasting,
    Later,
    Monthly,
    PaymentDeclined,
    Refused,
    Steps,
    Stopped,
    Unending,
    seen,
)
from tests.tools.server import Server
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

Session = sessionmaker[OrmSession]


class Place:
    """A Session to arrange and look with, and what the kit is given: `where`."""

    def __init__(self, session: OrmSession, where: Any) -> None:
        self.session, self.where = session, where

    def add(self, *objects: Any) -> None:
        """Add, and have it count: committed where that is what the kit looks at."""
        self.session.add_all(objects)
        self._end()

    def balance(self, account: int = 1) -> int:
        balance = self.session.get_one(Account, account, populate_existing=True).balance
        self._end()
        return balance

    def rows(self) -> list[Any]:
        rows = list(self.session.execute(text("SELECT * FROM magik_jobs ORDER BY id")))
        self._end()
        return rows

    def _end(self) -> None:
        if self.where is not self.session:
            self.session.commit()


def of_a_session(engine: Engine, stack: ExitStack) -> Place:
    session = stack.enter_context(OrmSession(engine))
    return Place(session, session)


def of_a_session_in_an_outer_transaction(engine: Engine, stack: ExitStack) -> Place:
    session = stack.enter_context(OrmSession(outer(engine, stack), join_transaction_mode="create_savepoint"))
    return Place(session, session)


def of_a_sessionmaker(engine: Engine, stack: ExitStack) -> Place:
    return Place(stack.enter_context(OrmSession(engine)), sessionmaker(engine))


def of_a_sessionmaker_in_an_outer_transaction(engine: Engine, stack: ExitStack) -> Place:
    sessions = sessionmaker(outer(engine, stack), join_transaction_mode="create_savepoint")
    return Place(stack.enter_context(sessions()), sessions)


def of_a_scoped_session(engine: Engine, stack: ExitStack) -> Place:
    sessions = scoped_session(sessionmaker(engine))
    stack.callback(sessions.remove)
    return Place(sessions(), sessions)


def outer(engine: Engine, stack: ExitStack) -> Connection:
    connection = stack.enter_context(engine.connect())
    stack.callback(connection.begin().rollback)
    return connection


Opening = Callable[[Engine, ExitStack], Place]
USUAL: list[Opening] = [of_a_session, of_a_session_in_an_outer_transaction, of_a_sessionmaker]
PLACES: list[Opening] = [*USUAL, of_a_sessionmaker_in_an_outer_transaction, of_a_scoped_session]
EMPTY = "TRUNCATE accounts, magik_jobs, magik_job_schedules"


@pytest.fixture(scope="module")
def database(server: Server, template: str) -> Iterator[str]:
    """One for all of this file: most of its tests leave nothing behind, which is what they are about."""
    with server.created(template) as name:
        url = server.url(name)
        engine = create_engine(url)
        Base.metadata.create_all(engine)
        engine.dispose()
        yield url


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    engine = create_engine(database)
    yield engine
    with engine.begin() as connection:
        connection.execute(text(EMPTY))
    engine.dispose()


@pytest.fixture(params=USUAL, ids=lambda place: place.__name__)
def place(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Place]:
    with ExitStack() as stack:
        place = request.param(engine, stack)
        place.add(Account(id=1))
        yield place


@pytest.fixture
def enclosed(engine: Engine) -> Iterator[OrmSession]:
    """SQLAlchemy's recipe: a Session in a transaction that is rolled back at the end."""
    with ExitStack() as stack:
        session = of_a_session_in_an_outer_transaction(engine, stack).session
        session.add(Account(id=1))
        session.commit()
        yield session


def committed(engine: Engine) -> tuple[int, int]:
    """How many accounts and jobs another connection sees."""
    with engine.connect() as connection:
        counts = "SELECT (SELECT count(*) FROM accounts), (SELECT count(*) FROM magik_jobs)"
        accounts, jobs = connection.execute(text(counts)).one()
    return accounts, jobs


# ---- drain


def test_what_is_due_is_run_and_its_rows_are_gone(place: Place) -> None:
    place.add(Deposit(account=1), Deposit(account=1, amount=10), Deposit(account=1, delay="1h"))
    ran = drain(place.where)
    assert [(run.cls, run.outcome, run.error) for run in ran] == [(Deposit, Outcome.FINISHED, None)] * 2
    assert place.balance() == 11
    assert len(place.rows()) == 1
    assert drain(place.where) == []


def test_what_a_failing_job_wrote_is_gone_and_it_is_tried_again_when_its_time_has_come(place: Place) -> None:
    place.add(Refused(account=1), Deposit(account=1, priority=200))
    first, second = drain(place.where)
    assert (first.outcome, first.wait, second.outcome) == (Outcome.RETRY, timedelta(minutes=10), Outcome.FINISHED)
    assert isinstance(first.error, PaymentDeclined)
    assert place.balance() == 1
    (row,) = place.rows()
    assert (row.error_count, row.last_error.splitlines()[0]) == (1, "PaymentDeclined: the card")
    assert drain(place.where) == []
    Clock(place.where).move("10m")
    assert [run.outcome for run in drain(place.where)] == [Outcome.EXPIRED]
    assert place.balance() == -1  # on_failure was called
    (row,) = place.rows()
    assert row.error_count == 2
    assert row.expired_at is not None


def test_a_job_that_breaks_its_transaction_leaves_the_tests_whole(place: Place) -> None:
    place.add(Divided(account=1))
    (ran,) = drain(place.where)
    assert isinstance(ran.error, DataError)
    assert place.balance() == 0
    place.add(Account(id=2), Deposit(account=2))
    assert [run.outcome for run in drain(place.where)] == [Outcome.FINISHED]
    assert place.balance(2) == 1


def test_what_jobs_add_is_run_too_and_what_they_add_for_later_is_not(place: Place) -> None:
    place.add(Monthly(account=1))
    for months in range(1, 4):
        assert len(drain(place.where)) == 1
        assert place.balance() == months
        assert len(place.rows()) == 1  # the next one of the same key
        Clock(place.where).move("30d")


def test_a_commit_and_a_rollback_in_a_job_are_its_own(place: Place) -> None:
    place.add(Steps(account=1))
    assert [run.outcome for run in drain(place.where)] == [Outcome.FINISHED]
    assert place.balance() == 1
    assert place.rows() == []


def test_a_job_that_snoozes_keeps_its_work_and_waits(place: Place) -> None:
    place.add(Later(account=1))
    for times in range(1, 3):
        (ran,) = drain(place.where)
        assert (ran.outcome, ran.wait) == (Outcome.SNOOZED, timedelta(minutes=5))
        assert place.balance() == times
        Clock(place.where).move("5m")
    assert [run.outcome for run in drain(place.where)] == [Outcome.FINISHED]


def test_a_job_that_discards_itself_keeps_its_work_and_is_a_dead_letter(place: Place) -> None:
    place.add(Closed(account=1))
    (ran,) = drain(place.where, raises=True)  # it is no error
    assert (ran.outcome, str(ran.error)) == (Outcome.EXPIRED, "the account is closed")
    assert place.balance() == 1


def test_a_finished_row_that_is_kept_stays(place: Place) -> None:
    place.add(Archived(account=1))
    drain(place.where)
    assert [row.finished_at is not None for row in place.rows()] == [True]
    assert drain(place.where) == []


def test_the_policy_is_asked_with_what_travelled_with_the_job(place: Place) -> None:
    seen.clear()
    for actor in ("ada", "eve"):
        token = context.set({"actor": actor})
        place.session.add(Escorted(amount=Decimal("1.50")))
        context.reset(token)
    place.add()
    ada, eve = drain(place.where)
    assert (ada.outcome, eve.outcome) == (Outcome.FINISHED, Outcome.EXPIRED)
    assert isinstance(eve.error, RunError)
    assert eve.error.code == "MAGIK_POLICY_DENIED"
    assert seen == [("Escorted", {"actor": "ada"}, Decimal("1.50"), [])]


def test_one_queue_can_be_run_alone(place: Place) -> None:
    place.add(Refused(account=1), Deposit(account=1))
    assert [run.cls for run in drain(place.where, queue="cards")] == [Refused]
    assert [run.cls for run in drain(place.where, queue="default")] == [Deposit]


def test_the_first_error_comes_out_if_asked_for_after_it_was_recorded(place: Place) -> None:
    place.add(Refused(account=1), Deposit(account=1, priority=200))
    with pytest.raises(PaymentDeclined, match="the card"):
        drain(place.where, raises=True)
    assert [row.error_count for row in place.rows()] == [1, 0]
    assert place.balance() == 0
    assert [run.outcome for run in drain(place.where)] == [Outcome.FINISHED]


def test_jobs_without_end_are_refused_with_their_names(place: Place) -> None:
    place.add(Unending())
    with pytest.raises(KitError, match=r"after 5 runs; the last were of Unending\.") as refused:
        drain(place.where, limit=5)
    assert refused.value.code == "MAGIK_DRAIN_ENDLESS"
    assert len(place.rows()) == 1  # the row is as it was, and nobody holds its lock
    assert place.session.scalar(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1")) == 0


def test_exactly_as_many_runs_as_allowed_are_no_error(place: Place) -> None:
    place.add(Deposit(account=1), Deposit(account=1))
    assert len(drain(place.where, limit=2)) == 2


def test_what_a_user_or_pytest_says_in_a_job_comes_out(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.add(Stopped())
    with pytest.raises(KeyboardInterrupt):
        drain(place.where)
    monkeypatch.setattr(Deposit, "perform", lambda *_: pytest.fail("not now"))
    place.add(Deposit(account=1))
    with pytest.raises(pytest.fail.Exception, match="not now"):
        drain(place.where)


def test_what_is_put_off_is_not_run_twice_and_what_is_tried_at_once_is(place: Place) -> None:
    """However long a drain takes: else a test with a short backoff would see now one try, now three."""
    place.add(Hasty(account=1), Jostled(account=1, priority=200))
    outcomes = [(run.cls, run.outcome) for run in drain(place.where)]
    assert outcomes == [(Hasty, Outcome.RETRY), (Jostled, Outcome.RETRY), (Jostled, Outcome.FINISHED)]


def test_a_cancelled_job_is_not_run(place: Place) -> None:
    place.add(Deposit(account=1), Deposit(account=1, amount=10))
    place.session.execute(delete(Deposit).where(Deposit.amount == 10))
    place.add()
    assert len(drain(place.where)) == 1


def test_what_happened_is_shown(place: Place) -> None:
    job = Refused(account=1)
    place.add(job)
    assert repr(drain(place.where)) == f"[<Refused {job.id} retry in 10m: PaymentDeclined: the card>]"


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("opening", PLACES, ids=lambda place: place.__name__)
def test_every_place_on_every_driver(opening: Opening, driver: str, engine: Engine) -> None:
    own = create_engine(make_url(engine.url).set(drivername=f"postgresql+{driver}"))
    with ExitStack() as stack:
        place = opening(own, stack)
        place.add(Account(id=1), Steps(account=1), Refused(account=1), Divided(account=1), Monthly(account=1))
        done, dead = Outcome.FINISHED, Outcome.EXPIRED
        assert [run.outcome for run in drain(place.where)] == [done, Outcome.RETRY, Outcome.RETRY, done]
        assert len(enqueued(place.where, Deposit, account=1)) == 3
        Clock(place.where).move("29d")
        assert [run.outcome for run in drain(place.where)] == [dead, dead]
        assert place.balance() == -1
    own.dispose()


# ---- inside of the test's transaction


def test_nothing_is_left_of_a_drain_when_the_test_rolls_back(engine: Engine) -> None:
    with ExitStack() as stack:
        session = of_a_session_in_an_outer_transaction(engine, stack).session
        session.add_all([Account(id=1), Deposit(account=1), Steps(account=1), Refused(account=1), Archived(account=1)])
        session.commit()
        drain(session)
        Clock(session).move("1d")
        drain(session)
        assert session.get_one(Account, 1).balance == -1
        session.commit()
        assert committed(engine) == (0, 0)
    assert committed(engine) == (0, 0)


def test_without_savepoints_a_jobs_rollback_takes_the_tests_work_with_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the job's Session joins the transaction as SQLAlchemy does where nothing is said."""
    monkeypatch.setattr("magik_sa.testing.stage.JOINED", "conditional_savepoint")
    with engine.connect() as connection, OrmSession(connection) as session:
        connection.begin()
        session.add_all([Account(id=1), Refused(account=1)])
        session.commit()
        drain(connection)
        assert connection.scalar(text("SELECT count(*) FROM accounts")) == 0


def test_a_session_in_a_transaction_commits_nothing(engine: Engine) -> None:
    with OrmSession(engine) as session:
        session.add_all([Account(id=1), Deposit(account=1)])
        assert len(drain(session)) == 1
        assert committed(engine) == (0, 0)
        session.rollback()
        assert session.get(Account, 1) is None


def test_what_jobs_wrote_outlives_a_rollback_of_what_came_after(enclosed: OrmSession) -> None:
    """The application's own rollback, in the next request, must not undo what a worker would have committed."""
    enclosed.add(Deposit(account=1))
    enclosed.commit()
    drain(enclosed)
    enclosed.add(Account(id=2))
    enclosed.flush()
    enclosed.rollback()
    assert enclosed.get_one(Account, 1).balance == 1
    assert enclosed.get(Account, 2) is None
    assert drain(enclosed) == []


@pytest.mark.parametrize("place", USUAL[:2], indirect=True, ids=lambda place: place.__name__)
def test_loaded_objects_show_what_the_jobs_wrote(place: Place) -> None:
    account, job, failing = place.session.get_one(Account, 1), Deposit(account=1), Refused(account=1)
    place.session.add_all([job, failing])
    drain(place.session)
    assert account.balance == 1
    assert (failing.error_count, failing in place.session) == (1, True)
    assert (job.account, job in place.session) == (1, False)
    place.session.rollback()


def test_a_session_of_its_own_kind_is_given_to_the_jobs(engine: Engine) -> None:
    class Own(OrmSession):
        def __init__(self, tenant: str, **options: Any) -> None:
            super().__init__(**options)
            self.tenant = tenant

    kinds: list[Any] = []
    with pytest.MonkeyPatch.context() as patch, Own("acme", bind=engine, expire_on_commit=False) as session:
        patch.setattr(
            Deposit, "perform", lambda _, own: kinds.append((isinstance(own, Own), own.tenant, own.expire_on_commit))
        )
        session.add(Deposit(account=1))
        drain(session)
    assert kinds == [(True, "acme", False)]


def test_other_engines_of_a_session_are_written_to_in_its_transactions(engine: Engine, empty_database: str) -> None:
    other = create_engine(empty_database)
    Base.metadata.create_all(other)
    with OrmSession(engine, binds={Account: other}) as session:
        session.add_all([Account(id=1), Deposit(account=1), Refused(account=1)])
        drain(session)
        assert session.get_one(Account, 1).balance == 1
        session.rollback()
    with other.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM accounts")) == 0
    other.dispose()


# ---- on what is committed


def test_only_what_is_committed_is_run_and_it_stays(engine: Engine, Session: Session) -> None:
    with Session() as session:
        session.add_all([Account(id=1), Deposit(account=1)])
        session.flush()
        assert drain(Session) == []
        session.commit()
    assert len(drain(engine)) == 1
    assert committed(engine) == (1, 0)
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_a_registry_is_left_as_it_was(engine: Engine) -> None:
    sessions, inside = scoped_session(sessionmaker(engine)), []
    own = sessions()
    own.add(Deposit(account=1))
    own.commit()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Deposit, "perform", lambda _, session: inside.append((sessions() is session, session is own)))
        drain(sessions)
    assert inside == [(True, False)]
    assert sessions() is own
    sessions.remove()


def test_what_a_worker_runs_is_left_to_it(database: str, engine: Engine, Session: Session, dsn: str) -> None:
    with Session() as session, session.begin():
        session.add_all([Account(id=1), Deposit(account=1)])
    with psycopg.connect(dsn, autocommit=True) as worker:
        worker.execute("SELECT pg_advisory_lock(uuid_hash_extended(id, tableoid::bigint)) FROM magik_jobs")
        assert drain(engine) == []
        worker.execute("SELECT pg_advisory_unlock_all()")
        assert len(drain(engine)) == 1


def test_a_job_that_waits_for_the_test_itself_gives_up(
    engine: Engine, Session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magik_sa.testing.stage.BOUNDED", "SET lock_timeout = '50ms'")
    with Session() as session:
        session.add_all([Account(id=1), Deposit(account=1)])
        session.commit()
        session.execute(update(Account).values(balance=5))
        (ran,) = drain(Session)
        assert ran.outcome is Outcome.RETRY
        assert "lock timeout" in str(ran.error)


@pytest.mark.parametrize("opening", PLACES, ids=lambda opening: opening.__name__)
def test_a_job_over_its_limit_is_a_failure_and_the_test_goes_on(engine: Engine, opening: Opening) -> None:
    with ExitStack() as stack:
        place = opening(engine, stack)
        place.add(Account(id=1), Lasting(account=1), Deposit(account=1, amount=10, priority=200))
        lasting, deposit = drain(place.where)
        assert (lasting.outcome, deposit.outcome) == (Outcome.RETRY, Outcome.FINISHED)
        assert isinstance(lasting.error, JobTimeout)
        assert place.balance() == 10
        (row,) = place.rows()
        assert (row.error_count, "MAGIK_JOB_TIMEOUT" in row.last_error) == (1, True)


def test_a_job_over_its_limit_for_the_last_time_fails_as_any_other(enclosed: OrmSession) -> None:
    enclosed.add(Lasting(account=1))
    drain(enclosed)
    enclosed.execute(update(Job).values(run_at=text("now()")))
    (ran,) = drain(enclosed)
    assert (ran.outcome, type(ran.error)) == (Outcome.EXPIRED, JobTimeout)
    assert enclosed.get_one(Account, 1).balance == 1  # what on_failure wrote


# ---- enqueued


def test_jobs_are_found_before_the_flush_and_after_it(place: Place) -> None:
    first = Deposit(account=1)
    place.session.add(first)
    if place.where is place.session:
        assert enqueued(place.where, Deposit) == [first]
        assert first in place.session.new  # nothing was flushed
    place.add()
    second = Deposit(account=2)
    place.add(second)
    assert [job.id for job in enqueued(place.where, Deposit)] == [first.id, second.id]
    drain(place.where, raises=False)
    assert [job.account for job in enqueued(place.where, Deposit)] == [2]  # it failed, and waits


def test_jobs_are_found_by_arguments_queue_and_priority(enclosed: OrmSession) -> None:
    one, ten = Deposit(account=1), Deposit(account=1, amount=10, queue="slow", priority=7)
    other = Refused(account=2)
    enclosed.add_all([one, ten, other])
    assert enqueued(enclosed, Deposit, amount=10) == [ten]
    assert enqueued(enclosed, Deposit, account=1, queue="slow", priority=7) == [ten]
    assert enqueued(enclosed, Deposit, account=2) == [other]  # a class that inherits it
    assert enqueued(enclosed, Refused) == [other]
    assert enqueued(enclosed, Job, queue="cards") == [other]
    assert enqueued(enclosed, Deposit, amount="10") == [ten]  # as the constructor would take it


@pytest.mark.parametrize("having", [{"acount": 1}, {"account": "x"}, {"run_at": 1}])
def test_what_no_job_can_have_is_refused(enclosed: OrmSession, having: dict[str, Any]) -> None:
    with pytest.raises(EnqueueError, match="MAGIK_ARGS_INVALID") as refused:
        enqueued(enclosed, Deposit, **having)
    assert refused.value.field == next(iter(having))


def test_repeats_and_what_is_cancelled_are_not_found(enclosed: OrmSession) -> None:
    flushed = Monthly(account=1)
    enclosed.add(flushed)
    enclosed.flush()
    pending, repeat = Monthly(account=2), Monthly(account=2)
    enclosed.add_all([Monthly(account=1), pending, repeat])
    assert enqueued(enclosed, Monthly) == [flushed, pending]
    enclosed.flush()
    assert enqueued(enclosed, Monthly) == [flushed, pending]
    enclosed.delete(flushed)
    assert enqueued(enclosed, Monthly) == [pending]


def test_dead_and_finished_jobs_do_not_wait(enclosed: OrmSession) -> None:
    enclosed.add_all([Closed(account=1), Archived(account=1)])
    drain(enclosed)
    assert enqueued(enclosed, Job) == []


def test_a_search_in_vain_tells_what_is_there(enclosed: OrmSession) -> None:
    assert repr(enqueued(enclosed, Monthly, account=1)) == "<no Monthly(account=1): no job waits>"
    job = Deposit(account=1)
    enclosed.add(job)
    assert repr(enqueued(enclosed, Monthly)) == f"<no Monthly() among [{job!r}]>"
    assert repr(enqueued(enclosed, Deposit)) == f"[{job!r}]"
    enclosed.expunge(job)
    assert repr(enqueued(enclosed, Escorted, card="4111")) == "<no Escorted(card=…): no job waits>"


# ---- perform


def test_a_job_is_performed_and_its_row_stays(enclosed: OrmSession) -> None:
    job = Deposit(account=1)
    perform(job, enclosed)
    assert enclosed.get_one(Account, 1).balance == 1
    assert enqueued(enclosed, Deposit) == []
    enclosed.add(job)
    perform(job, enclosed)
    assert enqueued(enclosed, Deposit) == [job]


def test_errors_of_a_job_and_its_wishes_come_out_raw(enclosed: OrmSession) -> None:
    with pytest.raises(PaymentDeclined):
        perform(Refused(account=1), enclosed)
    with pytest.raises(Snooze):
        perform(Later(account=1), enclosed)


def test_a_performed_job_has_its_context_and_its_surroundings_and_is_asked_for(enclosed: OrmSession) -> None:
    seen.clear()
    token = context.set({"actor": "ada"})
    allowed = Escorted(amount=Decimal("1.50"))
    context.reset(token)
    allowed.tags.append("late")
    perform(allowed, enclosed)
    assert seen == [("Escorted", {"actor": "ada"}, Decimal("1.50"), ["late"])]
    with pytest.raises(RunError, match="MAGIK_POLICY_DENIED"):
        perform(Escorted(amount=Decimal(1)), enclosed)
    assert dict(context.get()) == {}


def set_by_hand(session: OrmSession) -> Deposit:
    job = Deposit(account=1)
    job.args = {"account": 1, "amount": -3}
    return job


def written_by_hand(session: OrmSession) -> Deposit:
    row = """INSERT INTO magik_jobs (job_class, args) VALUES ('Deposit', '{"account": 1, "amount": -3}')"""
    session.execute(text(row))
    return session.scalars(select(Deposit)).one()


@pytest.mark.parametrize("made", [set_by_hand, written_by_hand])
def test_a_row_that_does_not_fit_its_class_is_refused_before_it_is_performed(
    enclosed: OrmSession, made: Callable[[OrmSession], Deposit], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Deposit, "perform", lambda *_: pytest.fail("performed"))
    job = made(enclosed)
    with pytest.raises(EnqueueError, match="MAGIK_ARGS_INVALID") as refused:
        perform(job, enclosed)
    assert refused.value.field == "amount"


@pytest.mark.parametrize(("verb", "code"), [(None, "MAGIK_POLICY_UNDECLARED"), ("kit.x", "MAGIK_POLICY_UNKNOWN")])
def test_a_class_that_no_worker_would_start_with_is_refused(enclosed: OrmSession, verb: str | None, code: str) -> None:
    class Unspoken(Job, policy=verb, name="kit.Unspoken"):
        def perform(self, session: OrmSession) -> None: ...

    try:
        with pytest.raises(BootError, match=code):
            perform(Unspoken(), enclosed)
        enclosed.add(Unspoken())
        with pytest.raises(BootError, match=code):
            drain(enclosed)
    finally:
        del _declared["kit.Unspoken"]  # or a boot of a later test would refuse to start


# ---- the clock


def test_time_passes_for_what_waits(place: Place) -> None:
    moment = datetime.now(UTC) + timedelta(days=40)
    place.add(Deposit(account=1, delay="1h"), Deposit(account=1, amount=10, run_at=moment))
    clock = Clock(place.where)
    clock.move("59m")
    assert drain(place.where) == []
    clock.move("1m")
    assert len(drain(place.where)) == 1
    clock.move_to(moment)
    assert clock.now() >= moment
    assert len(drain(place.where)) == 1
    assert place.balance() == 11
    assert timedelta(days=39) < clock.moved < timedelta(days=40)


def test_what_is_added_after_the_clock_was_moved_counts_from_then(place: Place) -> None:
    Clock(place.where).move("1d")
    place.add(Deposit(account=1, delay="1h"))
    assert drain(place.where) == []


def test_a_job_for_this_very_moment_is_due_however_old_the_transaction_is(place: Place) -> None:
    """Inside a transaction now() stands still; the process's clock does not."""
    place.rows()  # which begins it
    place.add(Deposit(account=1, run_at=datetime.now(UTC)))
    assert len(drain(place.where)) == 1


def test_a_wait_does_not_count_from_the_beginning_of_an_old_transaction(enclosed: OrmSession) -> None:
    """Or else a short backoff would be over before it begins, in a slow test."""
    enclosed.add_all([Refused(account=1), Later(account=1)])
    drain(enclosed)
    ages = "SELECT clock_timestamp() - now() AS age, min(run_at) - now() AS wait FROM magik_jobs"
    age, wait = enclosed.execute(text(ages)).one()
    assert wait > timedelta(minutes=5)
    assert wait - timedelta(minutes=5) <= age


def test_loaded_jobs_are_older_too_and_can_still_be_written(enclosed: OrmSession) -> None:
    job = Deposit(account=1, delay="1h")
    enclosed.add(job)
    enclosed.flush()
    before, version = job.run_at, job.version
    Clock(enclosed).move("30m")
    assert job.run_at == before - timedelta(minutes=30)
    enclosed.refresh(job)
    assert (job.run_at, job.version) == (before - timedelta(minutes=30), version)
    job.amount = 4
    enclosed.flush()


def test_schedules_grow_older_with_the_jobs(enclosed: OrmSession) -> None:
    enclosed.execute(
        text(
            "INSERT INTO magik_job_schedules VALUES ('s', 'Deposit', '{}', now() + interval '1 day', NULL, NULL, NULL)"
        )
    )
    Clock(enclosed).move("1d")
    assert enclosed.scalar(text("SELECT next_run_at <= now() FROM magik_job_schedules"))


@pytest.mark.parametrize("span", ["soon", "-1h", timedelta(seconds=-1), 5])
def test_a_clock_that_cannot_be_moved_so_says_why(enclosed: OrmSession, span: Any) -> None:
    with pytest.raises(DeclarationError, match="MAGIK_DURATION_INVALID") as refused:
        Clock(enclosed).move(span)
    assert refused.value.field == "move"


def test_the_past_and_times_without_a_zone_cannot_be_moved_to(enclosed: OrmSession) -> None:
    with pytest.raises(DeclarationError, match="MAGIK_DURATION_INVALID"):
        Clock(enclosed).move_to(datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(EnqueueError, match="naive"):
        Clock(enclosed).move_to(datetime(2040, 1, 1))  # noqa: DTZ001


def test_a_worker_that_listens_sees_the_clock_move(database: str, engine: Engine, Session: Session) -> None:
    with Session() as session, session.begin():
        session.add_all([Account(id=1), Deposit(account=1, delay="1h")])
    with WorkerProcess(database, "tests.jobs.kit", concurrency=1, poll_interval="60s") as worker:
        worker.wait_ready()
        Clock(engine).move("1h")
        until(lambda: committed(engine) == (1, 0), 10, what="the job is done")


# ---- what can be given


def test_what_keeps_no_transaction_is_refused(engine: Engine) -> None:
    """A job that fails would leave behind what it wrote, which no worker lets it."""
    committing = engine.execution_options(isolation_level="AUTOCOMMIT")
    for where in (committing, sessionmaker(committing), OrmSession(committing)):
        with pytest.raises(KitError, match="AUTOCOMMIT") as refused:
            drain(where)
        assert refused.value.code == "MAGIK_TEST_TARGET_INVALID"
        if isinstance(where, OrmSession):
            where.close()


@pytest.mark.parametrize("call", [drain, lambda where: enqueued(where, Deposit), lambda where: Clock(where).move("1s")])
def test_what_is_no_place_for_jobs_is_refused(call: Callable[[Any], object], database: str) -> None:
    asynchronous = create_async_engine(make_url(database).set(drivername="postgresql+asyncpg"))
    for wrong, why in [
        (create_engine("sqlite://"), "bound to sqlite"),
        (sessionmaker(create_engine("sqlite://")), "bound to sqlite"),
        (AsyncSession(asynchronous), "run_sync"),
        (asynchronous, "run_sync"),
        (database, "builtins.str"),
        (scoped_session(lambda: OrmSession()), "other than a sessionmaker"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(KitError, match=why) as refused:
            call(wrong)
        assert refused.value.code == "MAGIK_TEST_TARGET_INVALID"


async def run_async(database: str, driver: str) -> None:
    engine = create_async_engine(make_url(database).set(drivername=f"postgresql+{driver}"))
    async with engine.connect() as connection:
        outer = await connection.begin()
        async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session:
            session.add_all([Account(id=1), Deposit(account=1), Refused(account=1), Steps(account=1)])
            assert len(await session.run_sync(enqueued, Deposit, account=1)) == 3
            await session.commit()
            await session.run_sync(lambda own: perform(Deposit(account=1), own))
            ran = await session.run_sync(drain)
            assert sorted(run.outcome.value for run in ran) == ["finished", "finished", "retry"]
            await session.run_sync(lambda own: Clock(own).move("10m"))
            assert [run.outcome for run in await session.run_sync(drain)] == [Outcome.EXPIRED]
            assert (await session.get_one(Account, 1)).balance == -1
        await outer.rollback()
    await engine.dispose()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_an_asynchronous_session_runs_jobs_through_run_sync(database: str, engine: Engine, driver: str) -> None:
    asyncio.run(run_async(database, driver))
    assert committed(engine) == (0, 0)
