"""bulk_enqueue is session.add for many: the same rows, the same checks, the same transaction."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psutil
import pytest
from sqlalchemy import Engine, ForeignKey, create_engine, event, func, inspect, literal_column, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, Session, make_transient, mapped_column

from magik_sa import EnqueueError, Job, UnknownJob, arg, bulk_enqueue, chunk, context

AT = datetime(2031, 3, 4, 5, 6, 7, 890123, tzinfo=UTC)


class Invoice(Job, policy="system", queue="invoices", priority=50):
    """A keyed job with a list and a secret."""

    idempotent_by = "number"
    number: Mapped[int] = arg()
    lines: Mapped[list[str]] = arg(default_factory=list)
    card: Mapped[str] = arg(default="", sensitive=True)

    def perform(self, session: Session) -> None: ...


class Mailing(Job, policy="system"):
    to: Mapped[str] = arg(default="ada")

    def perform(self, session: Session) -> None: ...


class Filed(Job, policy="system"):
    """A job with a table of its own."""

    __tablename__ = "filed"
    id: Mapped[UUID] = mapped_column(ForeignKey(Job.id), primary_key=True)

    def perform(self, session: Session) -> None: ...


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


def rows(engine: Engine) -> list[dict[str, Any]]:
    """The jobs that are there, in the order they were written in."""
    with engine.connect() as connection:
        found = connection.execute(text("SELECT *, run_at - enqueued_at AS wait FROM magik_jobs ORDER BY ctid"))
        return [dict(row) for row in found.mappings()]


def setting(session: Session, name: str = "magik_sa.wake") -> str:
    return str(session.scalar(text(f"SELECT coalesce(current_setting('{name}', true), '')")))


# ---- the same rows


def test_a_mixture_of_classes_is_there_once_the_transaction_has_committed(session: Session, engine: Engine) -> None:
    jobs = [Invoice(number=1, lines=["a"]), Mailing(), Mailing(to="bob"), Invoice(number=2)]
    assert bulk_enqueue(session, jobs) == 4
    assert rows(engine) == []
    session.commit()
    assert {row["id"] for row in rows(engine)} == {job.id for job in jobs}
    assert all(inspect(job).transient for job in jobs)
    with Session(engine) as other:
        found = other.get_one(Invoice, jobs[0].id)
        assert (found.number, found.lines, found.queue, found.priority) == (1, ["a"], "invoices", 50)


WAYS: list[dict[str, Any]] = [
    {},
    {"delay": "1d2h"},
    {"delay": timedelta(microseconds=1)},
    {"run_at": AT},
    {"run_at": func.now()},
    {"run_at": func.now() + timedelta(days=400)},
    {"run_at": func.now() - timedelta(days=1)},
    {"run_at": func.now() + timedelta(seconds=-1)},
    {"run_at": func.date_trunc("day", func.now())},
    {"run_at": literal_column("now() + interval '1 month'")},
    {"run_at": select(func.now() + timedelta(hours=1)).scalar_subquery()},
    {"queue": "others", "priority": -7},
]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: ", ".join(way) or "plain")
def test_a_row_is_what_add_makes_of_the_same_job(
    session: Session, engine: Engine, way: dict[str, Any], zone: str
) -> None:
    session.execute(text(f"SET LOCAL TimeZone = '{zone}'"))
    session.execute(text("SET LOCAL IntervalStyle = 'sql_standard'"))  # in which one sign stands for all that follows
    token = context.set({"actor": "ada", "tenants": [1]})
    added, bulked = Invoice(number=1, card="4111", **way), Invoice(number=1, card="4111", **way)
    context.reset(token)
    session.add(added)
    session.flush()
    session.execute(text("UPDATE magik_jobs SET expired_at = '2020-01-01'"))  # its key is free again
    assert bulk_enqueue(session, [bulked]) == 1
    session.commit()
    one, two = rows(engine)
    own = {"id", "expired_at"}
    assert {name: value for name, value in one.items() if name not in own} == {
        name: value for name, value in two.items() if name not in own
    }
    assert (two["id"], two["context"]) == (bulked.id, {"actor": "ada", "tenants": [1]})


def test_what_was_set_on_a_job_by_hand_is_written(session: Session, engine: Engine) -> None:
    job = Invoice(number=1)
    job.error_count, job.last_error, job.failed_at, job.version, job.enqueued_at = 3, "why", AT, 7, AT
    job.lines.append("changed in place")
    bulk_enqueue(session, [job])
    session.commit()
    (row,) = rows(engine)
    assert (row["error_count"], row["last_error"], row["failed_at"], row["version"]) == (3, "why", AT, 7)
    assert (row["enqueued_at"], row["args"]["lines"]) == (AT, ["changed in place"])


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_odd_text_comes_through_every_driver(engine: Engine, driver: str) -> None:
    odd = '%s :name $1 {"a",NULL} \\ \' " \n 🦄 é'
    other = create_engine(engine.url.set(drivername=f"postgresql+{driver}"))
    with Session(other) as session, session.begin():
        assert bulk_enqueue(session, [Mailing(to=odd), Mailing(to="NULL"), Invoice(number=1, card=odd)]) == 3
    other.dispose()
    with Session(engine) as session:
        assert set(session.scalars(select(Mailing.to).where(Mailing.to.is_not(None)))) == {odd, "NULL"}
        assert session.scalars(select(Invoice.card).where(Invoice.card.is_not(None))).all() == [odd]


# ---- the same transaction


def test_a_rollback_takes_them_along(session: Session, engine: Engine) -> None:
    bulk_enqueue(session, [Mailing() for _ in range(10)])
    session.rollback()
    assert rows(engine) == []


def test_a_savepoint_takes_its_own_along(session: Session, engine: Engine) -> None:
    bulk_enqueue(session, [Mailing(to="kept")])
    with pytest.raises(ZeroDivisionError), session.begin_nested():
        bulk_enqueue(session, [Mailing(to="ghost")])
        raise ZeroDivisionError
    session.commit()
    assert [row["args"] for row in rows(engine)] == [{"to": "kept"}]


def test_jobs_that_were_added_before_come_first(session: Session) -> None:
    first = Invoice(number=1)
    session.add(first)
    repeat = Invoice(number=1)
    assert bulk_enqueue(session, [repeat]) == 0
    assert (repeat.is_repeat, repeat.repeat_of, first.is_repeat) == (True, first.id, False)


def test_without_autoflush_they_wait_for_their_own_flush(session: Session) -> None:
    late, bulked = Invoice(number=1), Invoice(number=1)
    session.add(late)
    with session.no_autoflush:
        assert bulk_enqueue(session, [bulked]) == 1
    session.commit()
    assert (late.is_repeat, late.repeat_of) == (True, bulked.id)


def test_nothing_is_sent_for_no_jobs(session: Session) -> None:
    assert bulk_enqueue(session, []) == 0
    assert not session.in_transaction()


# ---- repeats


def test_repeats_are_passed_over_and_say_so(session: Session, engine: Engine) -> None:
    live = Invoice(number=0)
    session.add(live)
    session.commit()
    jobs = [Invoice(number=number % 150) for number in range(300)]
    assert bulk_enqueue(session, [*jobs, Mailing()]) == 150
    session.commit()
    there = {row["args"].get("number"): row["id"] for row in rows(engine)}
    assert len(there) == 151
    assert all(job.is_repeat == (there[job.number] != job.id) for job in jobs)
    assert all(job.repeat_of == there[job.number] for job in jobs if job.is_repeat)
    assert [job.is_repeat for job in jobs[1:150]] == [False] * 149, "of two in one call the first is added"
    assert setting(session, "plan_cache_mode") == "auto"


def test_a_repeat_of_a_call_before_can_be_given_again(session: Session) -> None:
    session.add(first := Invoice(number=1))
    session.flush()
    repeat = Invoice(number=1)
    bulk_enqueue(session, [repeat])
    session.delete(first)
    session.flush()
    assert bulk_enqueue(session, [repeat]) == 1
    assert not repeat.is_repeat


def test_a_job_that_is_given_twice_is_added_once(session: Session, engine: Engine) -> None:
    jobs = [Mailing(), Invoice(number=1)]
    assert bulk_enqueue(session, [*jobs, *jobs]) == 2
    assert bulk_enqueue(session, jobs) == 0
    session.commit()
    assert len(rows(engine)) == 2


def test_keys_are_inserted_in_the_one_order_for_everybody(session: Session, engine: Engine) -> None:
    """Two transactions that insert the same keys in opposite order would wait for each other."""
    jobs = [Invoice(number=number) for number in range(50)]
    bulk_enqueue(session, jobs)
    session.commit()
    written = [row["key_digest"] for row in rows(engine)]
    assert written == sorted(written)
    assert written != [job.key_digest for job in jobs]


# ---- what is refused


def pending(session: Session) -> Any:
    session.add(job := Mailing())
    return job


def persistent(session: Session) -> Any:
    session.add(job := Mailing())
    session.flush()
    return job


def detached(session: Session) -> Any:
    session.add(job := Mailing())
    session.commit()
    session.expunge(job)
    return job


def unknown(session: Session) -> Any:
    session.execute(text("INSERT INTO magik_jobs (job_class) VALUES ('Nobody')"))
    job = session.scalars(select(Job).where(Job.job_class == "Nobody")).one()
    assert isinstance(job, UnknownJob)
    make_transient(job)
    session.execute(text("DELETE FROM magik_jobs"))
    session.commit()
    return job


def changed(session: Session) -> Any:
    job = Invoice(number=1)
    job.lines.append("\0")
    return job


def odd_context(session: Session) -> Any:
    job = Mailing()
    job.context = {"who": object()}
    return job


WRONG: dict[str, tuple[Any, str, str]] = {
    "a dict": (lambda _: {"to": "ada"}, "MAGIK_NOT_ENQUEUEABLE", r"jobs\[3\] is a dict"),
    "a class": (lambda _: Mailing, "MAGIK_NOT_ENQUEUEABLE", r"jobs\[3\] is a "),
    "pending": (pending, "MAGIK_NOT_ENQUEUEABLE", r"jobs\[3\].*in a Session"),
    "persistent": (persistent, "MAGIK_NOT_ENQUEUEABLE", r"jobs\[3\].*in a Session"),
    "detached": (detached, "MAGIK_NOT_ENQUEUEABLE", r"jobs\[3\].*in a Session"),
    "unknown": (unknown, "MAGIK_NOT_ENQUEUEABLE", r"jobs\[3\].*not declared"),
    "own table": (lambda _: Filed(), "MAGIK_NOT_ENQUEUEABLE", r"jobs\[3\].*Filed.*table of its own"),
    "changed in place": (changed, "MAGIK_ARGS_INVALID", r"jobs\[3\]: lines: .*NUL"),
    "context": (odd_context, "MAGIK_ARGS_INVALID", r"jobs\[3\]: context: .*not JSON"),
    "no time": (lambda _: Mailing(run_at=literal_column("NULL")), "MAGIK_ARGS_INVALID", r"jobs\[3\]: run_at"),
    "two times": (
        lambda _: Mailing(run_at=func.unnest(literal_column("ARRAY[now(), now()]"))),
        "MAGIK_ARGS_INVALID",
        r"jobs\[3\]: run_at",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_new_job_is_named_and_nothing_is_written(session: Session, engine: Engine, wrong: str) -> None:
    make, code, told = WRONG[wrong]
    job = make(session)
    before = rows(engine)
    with pytest.raises(EnqueueError, match=told) as refused:
        bulk_enqueue(session, [Mailing(), Mailing(), Mailing(), job, Mailing()])
    assert refused.value.code == code
    with session.no_autoflush:
        assert session.scalars(text("SELECT count(*) FROM magik_jobs")).one() <= len(before) + (wrong == "persistent")
    session.rollback()
    assert rows(engine) == before


def test_what_holds_no_jobs_is_refused(session: Session) -> None:
    nothing: Any
    for nothing in (Mailing(), None, 3):
        with pytest.raises(EnqueueError, match="MAGIK_NOT_ENQUEUEABLE: jobs is a "):
            bulk_enqueue(session, nothing)


def test_a_session_that_has_to_be_awaited_is_refused_with_the_form_that_works(session: Session) -> None:
    other: Any
    for other in (AsyncSession(), Session, None):
        with pytest.raises(EnqueueError, match="MAGIK_SYNC_SESSION_REQUIRED.*run_sync"):
            bulk_enqueue(other, [Mailing()])


@pytest.mark.parametrize("of_a_class", [False, True])
def test_what_was_inserted_before_the_fault_is_not_denied(
    session: Session, monkeypatch: pytest.MonkeyPatch, of_a_class: bool
) -> None:
    """It stands in the transaction, for whoever catches the error and commits."""
    monkeypatch.setattr(chunk, "ROWS", 2)
    changed_in_place = Invoice(number=9)
    changed_in_place.lines.append("\0")
    with pytest.raises(EnqueueError, match="^MAGIK_ARGS_INVALID") as refused:
        if of_a_class:
            bulk_enqueue(session, Mailing, [{"to": "a"}, {"to": "b"}, {"to": 3}])
        else:
            bulk_enqueue(session, [Mailing(), Mailing(), changed_in_place])
    assert session.scalars(text("SELECT count(*) FROM magik_jobs")).one() == 2
    assert "nothing was written." not in str(refused.value)
    assert "may stand in your transaction: roll that back" in str(refused.value)


def test_what_was_inserted_before_the_fault_goes_with_the_transaction(
    session: Session, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk, "ROWS", 2)
    wrong: Any = object()
    with pytest.raises(EnqueueError, match=r"jobs\[3\]"), session.begin_nested():
        bulk_enqueue(session, [Mailing(), Mailing(), Mailing(), wrong])
    session.commit()
    assert rows(engine) == []


# ---- chunks


def test_a_chunk_ends_by_its_rows_or_by_their_size(session: Session, engine: Engine) -> None:
    sent: list[int] = []
    event.listen(engine, "before_cursor_execute", lambda *_: sent.append(1))
    assert bulk_enqueue(session, (Mailing() for _ in range(chunk.ROWS + 1))) == chunk.ROWS + 1
    assert len(sent) == 2
    sent.clear()
    large = "x" * (chunk.BYTES // 20)
    assert bulk_enqueue(session, [Mailing(to=large) for _ in range(41)]) == 41
    assert len(sent) == 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hundred_thousand_out_of_a_generator_take_the_memory_of_one_chunk(session: Session, engine: Engine) -> None:
    """Kept, they would take ten times the bound: a job and its row have some 3 KB."""
    process = psutil.Process()
    gc.collect()
    early = late = 0

    def jobs() -> Iterator[Job]:
        nonlocal early, late
        for number in range(100_000):
            yield Mailing()
            if number == 10_000:
                early = process.memory_info().rss
        late = process.memory_info().rss

    assert bulk_enqueue(session, jobs()) == 100_000
    print(f"memory grew by {(late - early) / 2**20:.1f} MiB over the last 90,000 jobs")
    assert late - early < 30 * 2**20


# ---- of one class


class Parcel(Job, policy="system", queue="parcels"):
    """What may be made into rows without an object."""

    to: Mapped[str] = arg()
    weight: Mapped[int] = arg(default=3)
    stops: Mapped[list[str]] = arg(default_factory=list)

    def perform(self, session: Session) -> None: ...


class Vault(Job, policy="system"):
    code: Mapped[str] = arg(sensitive=True)

    def perform(self, session: Session) -> None: ...


numbers = itertools.count()


class Numbered(Job, policy="system"):
    number: Mapped[int] = arg(default_factory=lambda: next(numbers))

    def perform(self, session: Session) -> None: ...


class Doubled(Job, policy="system"):
    """Has a constructor of its own."""

    number: Mapped[int] = arg()

    def __init__(self, number: int) -> None:
        super().__init__(number=2 * number)

    def perform(self, session: Session) -> None: ...


OPTIONS: list[dict[str, Any]] = [
    {},
    {"queue": "vans", "priority": 7},
    {"run_at": AT},
    {"delay": timedelta(hours=1, microseconds=3)},
    {"run_at": func.now() - timedelta(days=1) * 2},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_rows_of_a_class_are_those_of_its_jobs(session: Session, engine: Engine, options: dict[str, Any]) -> None:
    given: list[dict[str, Any]] = [
        {"to": "ada"},
        {"to": 'b"\\ö\n', "weight": -1, "stops": ["x\ny", "ü"]},
        {"to": "", "weight": "12"},
    ]
    token = context.set({"who": "ann"})
    assert bulk_enqueue(session, Parcel, given, **options) == 3
    assert bulk_enqueue(session, [Parcel(**each, **options) for each in given]) == 3
    context.reset(token)
    session.commit()
    made = rows(engine)
    ids = [row.pop("id") for row in made]
    assert len(set(ids)) == 6
    assert all(id.version == 7 for id in ids)
    assert made[:3] == made[3:]
    with Session(engine) as other:
        assert [job.weight for job in other.scalars(select(Parcel).order_by(Parcel.id))] == [3, -1, 12] * 2


def test_each_row_has_the_context_that_there_was_when_its_arguments_came(session: Session, engine: Engine) -> None:
    """Also where it was changed in place."""
    there: dict[str, Any] = {"tenant": {"id": 0}}

    def given() -> Iterator[dict[str, Any]]:
        for number in (0, 0, 1, 1, 2):
            there["tenant"]["id"] = number
            yield {"to": "ada", "weight": number}

    token = context.set(there)
    assert bulk_enqueue(session, Parcel, given()) == 5
    context.reset(token)
    session.commit()
    assert [(row["args"]["weight"], row["context"]["tenant"]["id"]) for row in rows(engine)] == [
        (number, number) for number in (0, 0, 1, 1, 2)
    ]


def test_an_expression_that_differs_from_row_to_row_does(session: Session, engine: Engine) -> None:
    spread = func.now() + func.random() * timedelta(hours=1)
    assert bulk_enqueue(session, Parcel, [{"to": "ada"}] * 5, run_at=spread) == 5
    session.commit()
    assert len({row["run_at"] for row in rows(engine)}) == 5


def test_who_is_told_of_new_objects_is_told_of_each(session: Session, engine: Engine) -> None:
    def renamed(_: Parcel, __: Any, given: dict[str, Any]) -> None:
        given["queue"] = f"to-{given['to']}"

    event.listen(Parcel, "init", renamed)
    try:
        assert bulk_enqueue(session, Parcel, [{"to": "ada"}, {"to": "bob"}]) == 2
    finally:
        event.remove(Parcel, "init", renamed)
    session.commit()
    assert [row["queue"] for row in rows(engine)] == ["to-ada", "to-bob"]


def test_a_default_is_made_once_a_row(session: Session, engine: Engine) -> None:
    assert bulk_enqueue(session, Numbered, [{}, {}, {}]) == 3
    session.commit()
    made = [row["args"]["number"] for row in rows(engine)]
    assert made == [made[0], made[0] + 1, made[0] + 2]
    assert next(numbers) == made[2] + 1


def test_repeats_of_a_class_are_passed_over(session: Session, engine: Engine) -> None:
    assert bulk_enqueue(session, Invoice, [{"number": 1}, {"number": 2}, {"number": 1}]) == 2
    assert bulk_enqueue(session, Invoice, ({"number": number} for number in (2, 3)), queue="other") == 1
    session.commit()
    assert [row["queue"] for row in rows(engine)] == ["invoices", "invoices", "other"]


def test_a_constructor_of_the_class_itself_is_called(session: Session, engine: Engine) -> None:
    assert bulk_enqueue(session, Doubled, [{"number": 21}]) == 1
    session.commit()
    assert [row["args"] for row in rows(engine)] == [{"number": 42}]


def test_a_secret_is_not_in_the_error_of_the_statement(session: Session) -> None:
    session.execute(text("ALTER TABLE magik_jobs RENAME TO gone"))
    with pytest.raises(DBAPIError) as failed:
        bulk_enqueue(session, Vault, [{"code": "7734-sesame"}, {"code": "open"}])
    assert "all_args" in str(failed.value)
    assert "sesame" not in str(failed.value)


def test_many_of_a_class_are_read_chunk_by_chunk(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "ROWS", 2)
    there: list[int] = []

    def given() -> Iterator[dict[str, Any]]:
        for number in range(5):
            there.append(session.scalars(text("SELECT count(*) FROM magik_jobs")).one())
            yield {"to": str(number)}

    assert bulk_enqueue(session, Parcel, given(), wake=False) == 5
    assert there == [0, 0, 2, 2, 4]
    assert setting(session) == ""


WRONG_ARGUMENTS: dict[str, tuple[Any, str, str]] = {
    "no mapping": (("to", "ada"), "MAGIK_NOT_ENQUEUEABLE", r"arguments\[2\] is a tuple and no mapping"),
    "a job": (Mailing(), "MAGIK_NOT_ENQUEUEABLE", r"arguments\[2\] is a Mailing and no mapping"),
    "missing": ({}, "MAGIK_ARGS_INVALID", r"arguments\[2\]: to: is missing"),
    "unknown": ({"to": "a", "wieght": 1}, "MAGIK_ARGS_INVALID", r"arguments\[2\]: wieght: .*did you mean weight\?"),
    "wrong": ({"to": 3}, "MAGIK_ARGS_INVALID", r"arguments\[2\]: to: "),
    "self": ({"to": "a", "self": 1}, "MAGIK_ARGS_INVALID", r"arguments\[2\]: self: .* has no such argument"),
    "too wide": ({"to": "a", "weight": 2**63}, "MAGIK_ARGS_INVALID", r"arguments\[2\]: weight: .*64 bits"),
    "too large": ({"to": "x" * 262_144}, "MAGIK_ARGS_INVALID", r"arguments\[2\]: to: .* at most 262144 are allowed"),
    "NUL": ({"to": "\0"}, "MAGIK_ARGS_INVALID", r"arguments\[2\]: to: .*NUL"),
    "misspelt alone": ({"too": "a"}, "MAGIK_ARGS_INVALID", r"arguments\[2\]: too: .*did you mean to\?"),
    "an option alone": ({"queue": "vans"}, "MAGIK_NOT_ENQUEUEABLE", r"arguments\[2\] has queue, .*for all"),
    "no text": ({"to": "a", 3: 4}, "MAGIK_NOT_ENQUEUEABLE", r"arguments\[2\] has a name that is no text"),
    "an option": ({"to": "a", "queue": "vans"}, "MAGIK_NOT_ENQUEUEABLE", r"arguments\[2\] has queue, .*for all"),
}


@pytest.mark.parametrize("wrong", WRONG_ARGUMENTS)
@pytest.mark.parametrize("first", [False, True])
def test_what_are_no_arguments_of_the_class_is_named(session: Session, engine: Engine, wrong: str, first: bool) -> None:
    given, code, told = WRONG_ARGUMENTS[wrong]
    arguments: Any = [given] if first else [{"to": "a"}, {"to": "b"}, given]
    with pytest.raises(EnqueueError, match=told.replace("2", "0", 1) if first else told) as refused:
        bulk_enqueue(session, Parcel, arguments)
    assert refused.value.code == code
    session.commit()
    assert rows(engine) == []


def test_what_is_no_class_of_jobs_is_refused(session: Session) -> None:
    other: Any
    for other in (Job, UnknownJob, int):
        with pytest.raises(EnqueueError, match=f"MAGIK_NOT_ENQUEUEABLE: jobs is {other.__name__}, and no class"):
            bulk_enqueue(session, other, [{}])
    with pytest.raises(EnqueueError, match="MAGIK_NOT_ENQUEUEABLE: arguments is a NoneType and no iterable"):
        bulk_enqueue(session, Parcel)  # type: ignore[call-overload]
    with pytest.raises(EnqueueError, match="MAGIK_NOT_ENQUEUEABLE: delay goes with a class of jobs"):
        bulk_enqueue(session, [Mailing()], delay="1h")  # type: ignore[call-overload]
    with pytest.raises(EnqueueError, match=r"arguments\[0\]\.* is a Filed, which has a table of its own"):
        bulk_enqueue(session, Filed, [{}])


# ---- waking


def test_who_is_not_to_be_woken_is_not_and_the_setting_is_put_back(session: Session) -> None:
    bulk_enqueue(session, [Mailing()], wake=False)
    assert setting(session) == ""
    session.execute(text("SET LOCAL magik_sa.wake = 'off'"))
    for wake in (False, True):
        bulk_enqueue(session, [Mailing()], wake=wake)
        assert setting(session) == "off", "the application had said so itself"


def test_the_setting_is_put_back_when_the_insert_fails_in_a_savepoint(session: Session) -> None:
    session.execute(text("ALTER TABLE magik_jobs ADD CHECK (queue <> 'closed')"))
    with pytest.raises(DBAPIError), session.begin_nested():
        bulk_enqueue(session, [Mailing(queue="closed")], wake=False)
    assert setting(session) == ""


def test_the_setting_is_put_back_when_a_later_job_is_refused(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "ROWS", 1)
    wrong: Any = object()
    with pytest.raises(EnqueueError):
        bulk_enqueue(session, [Mailing(), wrong], wake=False)
    assert setting(session) == ""
