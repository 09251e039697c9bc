"""Acting on jobs: what each act does to a job in each state, and to one that somebody else has in hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from magik_sa import acting
from magik_sa.acting import Filter, Left, Seen, drawn, listed, show
from magik_sa.acting.bounds import BOUND
from magik_sa.claim import Claims
from magik_sa.errors import BootError, EnqueueError
from magik_sa.names import find
from magik_sa.wake import register
from tests.tools.waiting import until

Tell = Callable[..., list[Any]]
STATES = {
    "ready": "now(), 0, NULL, NULL",
    "errored": "now(), 2, NULL, NULL",
    "scheduled": "now() + interval '1 h', 0, NULL, NULL",
    "waiting": "now() + interval '1 h', 2, NULL, NULL",
    "parked": "'infinity', 0, NULL, NULL",
    "running": "now() - interval '1 min', 1, NULL, NULL",
    "expired": "now(), 6, NULL, now()",
    "finished": "now(), 0, now(), NULL",
    "both": "now(), 6, now(), now()",
}


@pytest.fixture
def tell(dsn: str) -> Iterator[Tell]:
    """Statements of somebody else, each committed at once."""
    with psycopg.connect(dsn, autocommit=True) as by_hand:

        def run(statement: str, *values: object) -> list[Any]:
            cursor = by_hand.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

        yield run


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        yield connection


@pytest.fixture
def worker(dsn: str) -> Iterator[Claims]:
    """What a worker has on the server."""
    with psycopg.connect(dsn, autocommit=True, application_name="w locker") as locking:
        names = find(locking, None)
        yield Claims(locking, names, register(locking, names, "host:1", ["default"]), "host:1")


def add(tell: Tell, state: str = "ready", key: str | None = None, args: str = "{}", queue: str = "default") -> UUID:
    row = f"'Any', %s, %s::bytea, %s::jsonb, 7, 'boom: first', {STATES[state]}"
    names = "job_class, queue, key_digest, args, version, last_error, run_at, error_count, finished_at, expired_at"
    ((job_id,),) = tell(f"INSERT INTO magik_jobs ({names}) SELECT {row} RETURNING id", queue, key, args)
    assert isinstance(job_id, UUID)
    return job_id


def row(tell: Tell, job_id: UUID) -> Any:
    """(live, due, error_count, version), or None."""
    found = tell(
        "SELECT coalesce(finished_at, expired_at) IS NULL, run_at <= now(), error_count, version"
        " FROM magik_jobs WHERE id = %s",
        job_id,
    )
    return found[0] if found else None


def act(connection: Connection, name: str, *ids: UUID, version: int = 7) -> acting.Done:
    options = {"why": "no more", "by": "ann"} if name == "discard" else {}
    with connection.begin():
        done = getattr(acting, name)(connection, dict.fromkeys(ids, version), **options)
        assert isinstance(done, acting.Done)
        return done


def claimed(worker: Claims, n: int = 9) -> list[UUID]:
    return [job.id for job in worker.reread(worker.walks.walk("default", n, ["Any"], []), ["Any"], []).jobs]


# ---- each act and each state ----------------------------------------------------------------------------------------

LIVES_AGAIN = (True, True, 0, 8)
OUTCOMES: dict[str, dict[str, Any]] = {
    "retry": {"errored": LIVES_AGAIN, "waiting": LIVES_AGAIN, "expired": LIVES_AGAIN, "running": "running"},
    "run_now": {
        "scheduled": (True, True, 0, 8),
        "waiting": (True, True, 2, 8),
        "parked": (True, True, 0, 8),
        "running": "running",
    },
    "cancel": dict.fromkeys(("ready", "errored", "scheduled", "waiting", "parked", "running", "expired")),
    "discard": {
        "ready": (False, True, 0, 8),
        "errored": (False, True, 2, 8),
        "scheduled": (False, False, 0, 8),
        "waiting": (False, False, 2, 8),
        "parked": (False, False, 0, 8),
        "running": (False, True, 1, 8),
    },
}
OUTCOMES["cancel"] |= {"both": None}


@pytest.mark.parametrize("name", OUTCOMES)
def test_an_act_does_what_it_says_to_the_states_it_is_for_and_leaves_the_others(
    name: str, connection: Connection, tell: Tell, worker: Claims
) -> None:
    ids = {"running": add(tell, "running")}
    assert claimed(worker) == [ids["running"]]
    ids |= {state: add(tell, state) for state in STATES if state != "running"}
    before = {state: row(tell, each) for state, each in ids.items()}
    done = act(connection, name, *ids.values())
    for state, each in ids.items():
        expected = OUTCOMES[name].get(state, "state")
        if isinstance(expected, str):
            assert (done.left[each].why, row(tell, each)) == (expected, before[state]), state
        else:
            assert row(tell, each) == expected, state
            assert each in done.done, state
    assert len(done.done) + len(done.left) == len(ids)
    assert done.ran == ([ids["running"]] if name in {"cancel", "discard"} else [])


def test_a_retried_job_keeps_its_last_error(connection: Connection, tell: Tell) -> None:
    job = add(tell, "expired")
    act(connection, "retry", job)
    assert tell("SELECT last_error FROM magik_jobs") == [("boom: first",)]


def test_a_discarded_job_says_why_by_whom_and_what_was_before(connection: Connection, tell: Tell) -> None:
    job = add(tell)
    with connection.begin():
        acting.discard(connection, {job: 7}, why="the account\x1b[2J\nis closed", by=" ann ")
    ((said,),) = tell("SELECT last_error FROM magik_jobs")
    assert said == "Discarded by ann: the account\\x1b[2J\\nis closed\n\nbefore that: boom: first"


@pytest.mark.parametrize(("why", "by"), [("", "ann"), ("no more", " "), ("x" * 1001, "ann")])
def test_a_reason_that_is_none_is_refused(why: str, by: str, connection: Connection, tell: Tell) -> None:
    job = add(tell)
    with pytest.raises(EnqueueError, match="MAGIK_ARGS_INVALID"):
        acting.discard(connection, {job: 7}, why=why, by=by)


def test_after_the_last_version_comes_the_first(connection: Connection, tell: Tell) -> None:
    job = add(tell, "expired")
    tell("UPDATE magik_jobs SET version = 2147483647")
    act(connection, "retry", job, version=2147483647)
    assert row(tell, job) == (True, True, 0, 1)


def test_nothing_is_done_to_nothing(connection: Connection) -> None:
    assert act(connection, "cancel") == acting.Done()
    assert act(connection, "cancel", lost := uuid4()).left == {lost: Left("gone")}


# ---- raced by somebody else -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("change", ["UPDATE magik_jobs SET version = version + 1", "DELETE FROM magik_jobs"])
def test_what_has_changed_or_gone_since_it_was_seen_is_spared(
    name: str, change: str, connection: Connection, tell: Tell
) -> None:
    job = add(tell, "waiting")
    tell(change)
    after = row(tell, job)
    assert act(connection, name, job).left[job].why == ("gone" if after is None else "changed")
    assert row(tell, job) == after


@pytest.mark.parametrize("first", OUTCOMES)
@pytest.mark.parametrize("second", OUTCOMES)
def test_of_two_acts_at_once_one_comes_through_and_the_other_waits_for_nobody(
    first: str, second: str, engine: Engine, connection: Connection, tell: Tell
) -> None:
    job, other = add(tell, "waiting"), add(tell, "waiting")
    options = {"why": "no more", "by": "ann"} if first == "discard" else {}
    with engine.begin() as open_one:
        assert getattr(acting, first)(open_one, {job: 7}, **options).done == [job]
        beside = act(connection, second, job, other)
        assert (beside.done, beside.left) == ([other], {job: Left("busy")})
    assert act(connection, second, job).left[job].why == ("gone" if first == "cancel" else "changed")


def test_a_row_that_a_run_has_written_to_holds_up_nobody(engine: Engine, connection: Connection, tell: Tell) -> None:
    job, other = add(tell), add(tell)
    with engine.begin() as checkpoint:
        checkpoint.execute(text("UPDATE magik_jobs SET version = version + 1 WHERE id = :id"), {"id": job})
        assert act(connection, "cancel", job, other).left == {job: Left("busy")}
    assert row(tell, other) is None


def test_no_worker_starts_a_job_while_an_act_on_it_is_open(engine: Engine, tell: Tell, worker: Claims) -> None:
    kept, lost = add(tell, "errored"), add(tell, "errored")
    with engine.begin() as connection:
        acting.retry(connection, {kept: 7})
        acting.cancel(connection, {lost: 7})
        assert worker.walks.walk("default", 9, ["Any"], []) == []
    assert claimed(worker) == [kept]


def test_what_a_worker_claimed_first_is_told_as_running(connection: Connection, tell: Tell, worker: Claims) -> None:
    job = add(tell, "errored")
    seen = listed(connection, Filter())
    connection.rollback()
    assert [each.state for each in seen] == ["ready"]
    claimed(worker)
    assert act(connection, "retry", job).left == {job: Left("running")}
    assert act(connection, "cancel", job).ran == [job]


@pytest.mark.parametrize("name", ["retry", "run_now"])
def test_one_that_runs_and_has_never_failed_is_told_as_running_and_no_other(
    name: str, connection: Connection, tell: Tell, worker: Claims
) -> None:
    job = add(tell, "ready")
    claimed(worker)
    other = add(tell, "ready")
    left = act(connection, name, job, other).left
    assert left[job] == Left("running")
    assert left[other].why == "state"


# ---- keys -----------------------------------------------------------------------------------------------------------


def test_a_dead_letter_whose_key_a_live_job_has_is_left_out_and_told_of(connection: Connection, tell: Tell) -> None:
    dead, free, live = add(tell, "expired", "a"), add(tell, "expired", "b"), add(tell, "ready", "a")
    done = act(connection, "retry", dead, free)
    assert (done.done, done.left) == ([free], {dead: Left("key_taken", f"{live} has its key")})


def test_of_several_dead_letters_with_one_key_the_first_named_lives(connection: Connection, tell: Tell) -> None:
    older, newer, keyless = add(tell, "expired", "a"), add(tell, "expired", "a"), add(tell, "expired")
    done = act(connection, "retry", newer, older, keyless)
    assert (done.done, done.left) == ([newer, keyless], {older: Left("key_taken", f"{newer} has its key")})


def test_drawn_dead_letters_come_latest_first_so_that_the_latest_of_a_key_lives(
    connection: Connection, tell: Tell
) -> None:
    older = add(tell, "expired", "a")
    newer = add(tell, "expired", "a")
    seen = drawn(connection, Filter(states=["expired"]))
    assert acting.retry(connection, {job.id: job.version for job in seen}).done == [newer]
    assert seen[1] == Seen(older, 7, "Any", "default", "expired")


def test_a_key_that_is_being_added_makes_that_job_busy_and_no_other(
    dsn: str, connection: Connection, tell: Tell
) -> None:
    ids = [add(tell, "expired", key) for key in "abc"]
    with psycopg.connect(dsn) as adding:
        adding.execute("INSERT INTO magik_jobs (job_class, key_digest) VALUES ('Any', 'b')")
        done = act(connection, "retry", *ids)
        assert (done.done, done.left) == ([ids[0], ids[2]], {ids[1]: Left("busy")})
        adding.rollback()
    assert act(connection, "retry", ids[1]).done == [ids[1]]


def test_a_key_that_was_added_meanwhile_leaves_that_job_out_and_no_other(
    dsn: str, engine: Engine, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BOUND, "lock_timeout", "20s")
    ids = [add(tell, "expired", key) for key in "abc"]
    result: list[acting.Done] = []

    def retrying() -> None:
        with engine.connect() as connection:
            result.append(act(connection, "retry", *ids))

    thread = threading.Thread(target=retrying)
    with psycopg.connect(dsn) as adding:
        adding.execute("INSERT INTO magik_jobs (job_class, key_digest) VALUES ('Any', 'b')")
        thread.start()
        until(lambda: tell("SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"))
        adding.commit()
    thread.join(20)
    (done,) = result
    assert (done.done, done.left[ids[1]].why) == ([ids[0], ids[2]], "key_taken")


# ---- bounds ---------------------------------------------------------------------------------------------------------


def test_a_row_that_the_database_refuses_is_left_out_and_no_other(connection: Connection, tell: Tell) -> None:
    ids = [add(tell) for _ in range(3)]
    tell("CREATE TABLE receipts (job_id uuid REFERENCES magik_jobs)")
    tell("INSERT INTO receipts VALUES (%s)", ids[1])
    done = act(connection, "cancel", *ids)
    assert done.done == [ids[0], ids[2]]
    assert done.left[ids[1]].why == "refused"
    assert "receipts" in done.left[ids[1]].detail


def test_what_a_trigger_has_against_one_row_is_nothing_against_the_others(connection: Connection, tell: Tell) -> None:
    ids = [add(tell, "expired", args=f'{{"n": {n}}}') for n in (1, 0, 2)]
    tell(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM 1 / (NEW.args ->> 'n')::int; RETURN NEW; END $$"
    )
    tell("CREATE TRIGGER no BEFORE UPDATE ON magik_jobs FOR EACH ROW EXECUTE FUNCTION no()")
    done = act(connection, "retry", *ids)
    assert (done.done, done.left[ids[1]].why) == ([ids[0], ids[2]], "refused")


def test_a_trigger_that_cannot_run_at_all_is_something_against_its_row(connection: Connection, tell: Tell) -> None:
    ids = [add(tell), add(tell, queue="other")]
    tell(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM of_a_release_before(); RETURN OLD; END $$"
    )
    tell("CREATE TRIGGER no BEFORE DELETE ON magik_jobs FOR EACH ROW WHEN (OLD.queue = 'other') EXECUTE FUNCTION no()")
    done = act(connection, "cancel", *ids)
    assert (done.done, done.left[ids[1]].why) == ([ids[0]], "refused")


def test_what_a_trigger_keeps_without_a_word_is_told_of(connection: Connection, tell: Tell) -> None:
    ids = [add(tell), add(tell, queue="other")]
    tell("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    tell("CREATE TRIGGER no BEFORE DELETE ON magik_jobs FOR EACH ROW WHEN (OLD.queue = 'other') EXECUTE FUNCTION no()")
    done = act(connection, "cancel", *ids)
    assert (done.done, done.left[ids[1]].why) == ([ids[0]], "refused")


def test_what_is_wrong_for_all_is_raised_and_the_caller_s_transaction_goes_on(
    connection: Connection, tell: Tell
) -> None:
    job = add(tell)
    with connection.begin():
        connection.execute(text("SET TRANSACTION READ ONLY"))
        with pytest.raises(DBAPIError, match="read-only transaction"):
            acting.cancel(connection, {job: 7})
        assert connection.scalar(text("SELECT count(*) FROM magik_jobs")) == 1


def test_the_caller_decides_whether_it_has_happened_and_finds_its_own_settings(
    engine: Engine, connection: Connection, tell: Tell
) -> None:
    job = add(tell, "expired")
    with Session(engine) as session:
        session.execute(text("SET lock_timeout = '7s'"))
        assert acting.retry(session, {job: 7}).done == [job]
        assert session.scalar(text("SHOW lock_timeout")) == "7s"
        assert session.scalar(text("SHOW enable_seqscan")) == "on"
        session.rollback()
    assert row(tell, job) == (False, True, 6, 7)


def test_other_drivers_do_the_same(database: str, tell: Tell) -> None:
    jobs = [add(tell, "waiting", args='{"n": 7}') for _ in range(2)]
    chosen = Filter(states=["errored"], arguments={"n": "7"}, ids=jobs, younger_than="1h")
    engine = create_engine(make_url(database).set(drivername="postgresql+psycopg2"))
    with Session(engine) as session, session.begin():
        seen = drawn(session, chosen)
        assert acting.retry(session, {job.id: job.version for job in seen[:1]}).done == jobs[:1]
    engine.dispose()

    async def run() -> list[UUID]:
        engine = create_async_engine(make_url(database).set(drivername="postgresql+asyncpg"))
        async with AsyncSession(engine) as session, session.begin():
            done = await session.run_sync(acting.cancel, {job.id: job.version for job in seen[1:]})
        await engine.dispose()
        return done.done

    assert asyncio.run(run()) == jobs[1:]


def test_more_than_a_batch_is_split(connection: Connection, tell: Tell) -> None:
    tell("INSERT INTO magik_jobs (job_class, expired_at) SELECT 'Any', now() FROM generate_series(1, 600)")
    seen = {job.id: job.version for job in drawn(connection, Filter())}
    assert [len(batch) for batch in acting.batches(seen)] == [250, 250, 100]
    assert acting.retry(connection, seen).done == [*seen]


CHEAP = """
SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'magik_jobs'"""


def test_neither_lists_nor_acts_read_rows_that_are_not_asked_for(connection: Connection, tell: Tell) -> None:
    for column in ("expired_at", "finished_at"):
        tell(f"INSERT INTO magik_jobs (job_class, {column}) SELECT 'Any', now() FROM generate_series(1, 5000)")
    tell(
        "INSERT INTO magik_jobs (job_class, run_at) SELECT 'Any', now() + i * interval '1 s' FROM"
        " generate_series(1, 5000) i"
    )
    for states in (["scheduled"], ["expired"], ["finished"]):
        assert len(listed(connection, Filter(states=states), 10)) == 10
    acting.cancel(connection, {job.id: job.version for job in drawn(connection, Filter(), 10)})
    read, fetched = connection.execute(text(CHEAP)).one()
    assert read == 0
    assert fetched < 200


def test_a_database_without_tables_says_so(engine: Engine, tell: Tell) -> None:
    tell("DROP TABLE magik_jobs CASCADE")
    with engine.connect() as connection, pytest.raises(BootError, match="MAGIK_SCHEMA_MISSING"):
        listed(connection, Filter())


# ---- filters --------------------------------------------------------------------------------------------------------


def found(connection: Connection, **chosen: Any) -> list[UUID]:
    return [job.id for job in listed(connection, Filter(**chosen))]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], ["errored", "ready", "running", "scheduled", "waiting", "parked", "both", "expired"]),
        (["ready"], ["errored", "ready"]),
        (["running"], ["running"]),
        (["scheduled"], ["scheduled", "waiting", "parked"]),
        (["errored"], ["errored", "waiting", "running"]),
        (["expired"], ["both", "expired"]),
        (["finished"], ["finished"]),
        (["ready", "finished"], ["errored", "ready", "finished"]),
    ],
)
def test_states(states: list[str], expected: list[str], connection: Connection, tell: Tell, worker: Claims) -> None:
    ids = {"running": add(tell, "running")}
    claimed(worker)
    ids |= {state: add(tell, state) for state in STATES if state != "running"}
    assert {*found(connection, states=states)} == {ids[state] for state in expected}


def test_class_queue_and_age(connection: Connection, tell: Tell) -> None:
    mail, dead = add(tell, queue="mail"), add(tell, "expired")
    tell("UPDATE magik_jobs SET job_class = 'Mail' WHERE id = %s", mail)
    tell("UPDATE magik_jobs SET expired_at = now() - interval '2 h' WHERE id = %s", dead)
    assert found(connection, job_class="Mail") == found(connection, queue="mail") == [mail]
    assert found(connection, older_than="1h") == found(connection, older_than=timedelta(hours=1)) == [dead]
    assert found(connection, younger_than="1h") == [mail]
    assert found(connection, ids=[dead, mail, uuid4()]) == [dead, mail]
    assert found(connection, ids=[dead, mail], older_than="1h") == [dead]
    assert found(connection, job_class="Mail", queue="default") == []


@pytest.mark.parametrize(
    ("name", "value", "matches"),
    [
        ("tenant_id", "7", True),
        ("tenant_id", "07", False),
        ("dry", "true", True),
        ("name", "O'Hara; DROP TABLE magik_jobs --", True),
        ("name", "%", False),
        ("nothing", "null", False),
        ("nothing", "", False),
        ("absent", "", False),
        ("odd ' \" :name0 %s \\ name", "x", True),
        ("tenant_id' = '7' OR true --", "7", False),
        ("list", "[1, 2]", True),
        ("0", "7", False),
    ],
)
def test_an_argument_is_compared_as_text_and_never_read_as_sql(
    name: str, value: str, matches: bool, connection: Connection, tell: Tell
) -> None:
    args = (
        '{"tenant_id": 7, "dry": true, "name": "O\'Hara; DROP TABLE magik_jobs --", "nothing": null, "list": [1, 2],'
        r' "odd \' \" :name0 %s \\ name": "x"}'.replace(r"\'", "'")
    )
    job = add(tell, args=args)
    assert found(connection, arguments={name: value}) == ([job] if matches else [])
    assert found(connection, arguments={name: value, "tenant_id": "8"}) == []


@pytest.mark.parametrize(
    ("chosen", "field"),
    [
        ({"states": ["dead"]}, "state"),
        ({"job_class": "a\0b"}, "class"),
        ({"queue": "\udc80"}, "queue"),
        ({"older_than": "5"}, "older_than"),
        ({"younger_than": timedelta(days=-1)}, "younger_than"),
        ({"arguments": {"n": 7}}, "arguments"),
        ({"arguments": {"n\0": "7"}}, "arguments"),
        ({"ids": ["7"]}, "ids"),
    ],
)
def test_what_is_no_filter_is_refused_and_named(chosen: dict[str, Any], field: str) -> None:
    with pytest.raises(EnqueueError, match="MAGIK_FILTER_INVALID") as refused:
        Filter(**chosen)
    assert refused.value.field == field


def test_rows_that_python_cannot_hold_are_listed_and_shown(engine: Engine, connection: Connection, tell: Tell) -> None:
    job = add(tell, args='{"n": 1e999}')
    tell("UPDATE magik_jobs SET run_at = '-infinity', enqueued_at = '0044-03-15 BC', last_error = NULL")
    with Session(engine) as session:
        (one,) = listed(session, Filter())
    assert (one.run_at, one.why) == ("-infinity", None)
    shown = show(connection, job, arguments=True)
    assert shown is not None
    assert shown.arguments.startswith('{"n": 1000')
    unasked = show(connection, job)
    assert unasked is not None
    assert unasked.arguments is None
    assert show(connection, uuid4()) is None
