"""The figures of a status: true at the moment, bounded in cost, and unknown where they cannot be had."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text

import magik_sa.asking
from magik_sa.asking import LONGEST, SETTINGS, Asking
from magik_sa.claim import Busy, Claims
from magik_sa.cli.status import _state, queues_told
from magik_sa.errors import BootError
from magik_sa.home import located
from magik_sa.names import find
from magik_sa.outcome import Outcome
from magik_sa.status import questions, status
from magik_sa.status.figures import Queue, Status
from magik_sa.wake import Flag, raise_flag, register
from magik_sa.worker.letters import Ended
from magik_sa.worker.tally import TOLD_EVERY, Tally, publish
from tests.tools.clock import set_in
from tests.tools.sessions import terminate

Tell = Callable[..., None]


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        connection.execute(text("SET application_name = 'looking'"))
        connection.commit()
        yield connection


@pytest.fixture
def tell(dsn: str) -> Iterator[Tell]:
    """Rows by hand, as anybody may write them."""
    with psycopg.connect(dsn, autocommit=True) as by_hand:

        def run(statement: str, *values: object) -> None:
            by_hand.execute(statement.encode(), values)

        yield run


def add(tell: Tell, n: int = 1, queue: str = "default", **columns: str) -> None:
    """`n` rows of one kind; columns are SQL."""
    names, values = ["job_class", "queue", *columns], ["'Any'", f"'{queue}'", *columns.values()]
    tell(f"INSERT INTO magik_jobs ({', '.join(names)}) SELECT {', '.join(values)} FROM generate_series(1, {n})")


def asked(connection: Connection, **options: Any) -> Status:
    return status(Asking(connection, 60), **options)


def queue(found: Status, name: str = "default") -> Queue:
    (one,) = [each for each in found.queues or () if each.name == name]
    return one


@pytest.fixture
def worker(dsn: str) -> Iterator[Claims]:
    """What a worker has on the server: a session with a row of its own."""
    with psycopg.connect(dsn, autocommit=True, application_name="w locker") as locking:
        names = find(locking, None)
        yield Claims(locking, names, register(locking, names, "host:1", ["default", "mail"]), "host:1")


# ---- counts ---------------------------------------------------------------------------------------------------------


def test_an_empty_database_has_nothing_and_nothing_is_unknown(connection: Connection) -> None:
    assert asked(connection) == Status([], [], [], [], {})


def test_each_state_is_counted_by_queue(connection: Connection, tell: Tell) -> None:
    add(tell, 3)
    add(tell, 2, priority="7")
    add(tell, 4, run_at="now() + interval '1 h'")
    add(tell, 1, run_at="now() + interval '1 h'", error_count="2")
    add(tell, 1, error_count="1", queue="mail")
    add(tell, 5, expired_at="now()", error_count="9")
    add(tell, 6, finished_at="now()", error_count="9")
    add(tell, 1, expired_at="now()", queue="old")
    found = asked(connection)
    assert [each.name for each in found.queues or ()] == ["default", "mail", "old"]
    default, mail, old = queue(found), queue(found, "mail"), queue(found, "old")
    assert (default.ready, default.running, default.scheduled, default.errored, default.expired) == (5, 0, 5, 1, 5)
    assert (mail.ready, mail.running, mail.scheduled, mail.errored, mail.expired) == (1, 0, 0, 1, 0)
    assert (old.ready, old.scheduled, old.expired, old.oldest_queued_seconds) == (0, 0, 1, 0)
    assert default.at_least == mail.at_least == old.at_least == []


def test_what_is_claimed_runs_and_is_not_ready(connection: Connection, tell: Tell, worker: Claims) -> None:
    add(tell, 5, run_at="now() - interval '1 min'")
    ids = worker.walks.walk("default", 2, ["Any"], [])
    before = queue(asked(connection))
    assert (before.ready, before.running) == (5, 0), "a lock without a note may be anybody's"
    worker.reread(ids, ["Any"], [])
    found = asked(connection)
    assert (queue(found).ready, queue(found).running) == (3, 2)
    assert [(each.alive, each.running, each.queues) for each in found.workers or ()] == [(True, 2, ["default", "mail"])]


def test_a_note_without_its_lock_is_no_running_job(connection: Connection, tell: Tell, worker: Claims) -> None:
    add(tell, 2)
    batch = worker.reread(worker.walks.walk("default", 2, ["Any"], []), ["Any"], [])
    worker.locks.unlock([job.id for job in batch.jobs])
    assert (queue(asked(connection)).ready, queue(asked(connection)).running) == (2, 0)


def test_the_oldest_is_the_one_that_has_been_due_for_the_longest_and_is_not_claimed(
    connection: Connection, tell: Tell, worker: Claims
) -> None:
    add(tell, run_at="now() - interval '3 h'")
    worker.reread(worker.walks.walk("default", 1, ["Any"], []), ["Any"], [])
    add(tell, run_at="now() - interval '2 h'", priority="200")
    add(tell, run_at="now() - interval '1 h'", priority="1")
    add(tell, run_at="now() - interval '4 h'", expired_at="now()")
    add(tell, run_at="'-infinity'")
    add(tell, run_at="'infinity'")
    age = queue(asked(connection)).oldest_queued_seconds
    assert age is not None
    assert 7200 <= age < 7260


def test_counting_ends_at_the_limit_and_says_so(connection: Connection, tell: Tell) -> None:
    add(tell, 7, error_count="1")
    add(tell, 3, run_at="now() + interval '1 h'")
    add(tell, 5, priority="1", queue="full")
    found = asked(connection, most=5)
    default, full = queue(found), queue(found, "full")
    assert (default.ready, default.scheduled, default.errored) == (5, 3, 6)
    assert default.at_least == ["ready", "errored"]
    assert (full.ready, full.at_least) == (5, []), "exactly as many are no more"


def test_of_many_dead_letters_the_latest_are_counted_and_the_others_are_no_zero(
    connection: Connection, tell: Tell
) -> None:
    add(tell, 6, expired_at="now()")
    add(tell, 6, expired_at="now() - interval '1 day'", queue="forgotten")
    add(tell, 1, queue="forgotten")
    found = asked(connection, most=5)
    assert (queue(found).expired, queue(found).at_least) == (5, ["expired"])
    assert queue(found, "forgotten").expired is None


def test_a_paused_queue_is_there_without_jobs(connection: Connection, tell: Tell) -> None:
    tell("INSERT INTO magik_queues (name, paused_by, paused_at) VALUES ('mail', 'ann', '2026-11-30 01:34:05Z')")
    mail = queue(asked(connection), "mail")
    assert (mail.ready, mail.paused, mail.paused_by, mail.paused_at) == (0, True, "ann", "2026-11-30T01:34:05Z")
    tell("UPDATE magik_queues SET paused_by = NULL, paused_at = 'infinity'")
    assert "\nmail: paused since infinity. It goes on with: magik queues resume mail" in queues_told(
        asked(connection).queues
    )


# ---- workers, schedules, what nobody serves --------------------------------------------------------------------------


def test_a_row_of_a_worker_whose_session_is_gone_is_no_worker(connection: Connection, tell: Tell) -> None:
    tell("INSERT INTO magik_workers VALUES (999999, now(), 'gone:1', '{default}')")
    tell("INSERT INTO magik_workers VALUES (pg_backend_pid(), now(), 'an id used again', '{default}')")
    assert asked(connection).workers == []


def test_schedules_tell_whether_somebody_takes_their_ticks(connection: Connection, tell: Tell, worker: Claims) -> None:
    insert = "INSERT INTO magik_job_schedules (name, job_class, declaration, next_run_at, paused_at, paused_by) VALUES "
    for name, moment, paused in [
        ("soon", "now() + interval '1 min'", "NULL, NULL"),
        ("just now", "now() - interval '1 s'", "NULL, NULL"),
        ("stale", "'2020-02-03 04:05:06+00'", "NULL, NULL"),
        ("paused", "now() - interval '1 h'", "'2026-11-30 01:34:05Z', 'ann'"),
        ("never", "'infinity'", "NULL, NULL"),
    ]:
        tell(f"""{insert} ('{name}', 'Any', '{{"every": "10m"}}', {moment}, {paused})""")
    found = {each.name: each for each in asked(connection).schedules or ()}
    assert [name for name, each in found.items() if each.stale] == ["stale"]
    assert [name for name, each in found.items() if each.due] == ["just now", "stale"]
    assert [_state(found[name]).split(":")[0] for name in ("soon", "just now", "stale", "paused")] == [
        *("on time", "due", "stale", "paused by ann since 2026-11-30T01"),
    ]
    assert found["paused"].paused_at == "2026-11-30T01:34:05Z"
    assert [name for name, each in found.items() if each.paused] == ["paused"]
    assert (found["stale"].next_run_at, found["stale"].last_run_at) == ("2020-02-03T04:05:06Z", None)
    assert found["never"].next_run_at == "infinity"
    assert found["soon"].declaration == {"every": "10m"}


def test_a_schedule_that_is_due_is_stale_at_once_where_no_worker_is_alive(connection: Connection, tell: Tell) -> None:
    tell("INSERT INTO magik_workers VALUES (999999, now(), 'gone:1', '{default}')")
    for name, moment in [("due", "now() - interval '1 s'"), ("soon", "now() + interval '1 min'")]:
        tell(f"""INSERT INTO magik_job_schedules (name, job_class, declaration, next_run_at)
                 VALUES ('{name}', 'Any', '{{"every": "10m"}}', {moment})""")
    assert {each.name: each.stale for each in asked(connection).schedules or ()} == {"due": True, "soon": False}


def test_jobs_of_a_queue_without_a_worker_are_served_by_nobody(
    connection: Connection, tell: Tell, worker: Claims
) -> None:
    add(tell, 2, queue="mail")
    add(tell, 3, queue="reports")
    add(tell, 1, queue="stopped")
    add(tell, 1, queue="later", run_at="now() + interval '1 h'")
    tell("INSERT INTO magik_queues (name) VALUES ('stopped')")
    found = asked(connection).unserved or []
    assert [(each.job_class, each.queue, each.ready, each.why) for each in found] == [
        ("Any", "reports", 3, "no_worker")
    ]


def test_jobs_that_a_waiting_worker_leaves_are_of_a_class_that_it_does_not_know(
    connection: Connection, tell: Tell, worker: Claims
) -> None:
    add(tell, 2, queue="mail", run_at="now() - interval '1 min'")
    assert asked(connection).unserved == [], "it may be at work"
    assert raise_flag(worker.connection, worker.names, "mail") is Flag.OURS
    assert [each.why for each in asked(connection).unserved or ()] == ["passed_over"]
    add(tell, 1)
    worker.reread(worker.walks.walk("default", 1, ["Any"], []), ["Any"], [])
    assert asked(connection).unserved == [], "another of its threads may come to them"


# ---- what has ended -------------------------------------------------------------------------------------------------


def tallied(worker: Claims, tell: Tell, **ends: Outcome) -> Tally:
    """A job of each of these queues has ended so."""
    tally = Tally(["default", "mail"])
    for name, outcome in ends.items():
        add(tell, queue=name)
        (job,) = worker.claim(name, 1, ["Any"], Busy((), ())).jobs
        tally.note(Ended(job, outcome))
    return tally


def test_what_workers_have_ended_in_the_last_minute_is_told_by_queue(
    connection: Connection, tell: Tell, worker: Claims
) -> None:
    add(tell, queue="reports")
    assert queue(asked(connection), "mail").ended_last_minute == 0, "nothing yet, and somebody is there to say so"
    publish(worker.connection, worker.names, worker.owner, tallied(worker, tell, mail=Outcome.EXPIRED))
    found = asked(connection)
    assert [(each.name, each.ended_last_minute) for each in found.queues or ()] == [
        ("default", 0),
        ("mail", 1),
        ("reports", None),
    ]
    assert [each.ended for each in found.workers or ()] == [[0, 1]]
    tell("UPDATE magik_workers SET backend_start = now()")
    assert queue(asked(connection), "mail").ended_last_minute is None, "nobody is alive to say so"


@pytest.mark.parametrize("outcome", [each for each in Outcome if each not in (Outcome.FINISHED, Outcome.EXPIRED)])
def test_a_run_after_which_the_job_is_still_there_has_ended_nothing(
    tell: Tell, worker: Claims, outcome: Outcome
) -> None:
    assert tallied(worker, tell, default=outcome).seconds(time.monotonic()) is None


@pytest.mark.parametrize(
    ("since", "counted"),
    [
        ([0, 15, 30, 45, 60], 1 + 2 + 4 + 8),
        ([14, 29, 44, 59, 74], 1 + 2 + 4 + 8),  # the minute until it was last said: more may have ended since
        ([16, 31, 46, 61, 76], 1 + 2 + 4),  # nothing has: it would have been said
        ([59, 74, 89, 104, 119], 1),
        ([61, 76, 91, 106, 121], 0),
    ],
)
def test_a_minute_is_counted_until_it_was_last_said_and_then_grows_old(
    connection: Connection, tell: Tell, worker: Claims, since: list[int], counted: int
) -> None:
    tell("CREATE SCHEMA still")
    tell(f"CREATE FUNCTION still.now() RETURNS timestamptz STABLE RETURN timestamptz '{datetime.now(UTC)}'")
    connection.execute(text("SET search_path = still, pg_catalog, public"))
    connection.commit()
    said = "ARRAY(SELECT still.now() - s * interval '1 s' FROM unnest(%s::int[]) WITH ORDINALITY u (s, n) ORDER BY n)"
    ended = [[1, 100], [2, 100], [4, 100], [8, 100], [16, 100]]
    tell(f"UPDATE magik_workers SET ended_at = {said}, ended = %s::int[]", since, ended)
    assert queue(asked(connection)).ended_last_minute == counted


@pytest.mark.parametrize(
    "row", ["'{infinity}', '{{1,1}}'", "'{NULL}', '{{1,1}}'", "'{2020-01-01}', NULL", "NULL, '{7}'", "'{}', '{}'"]
)
def test_a_row_by_hand_keeps_nobody_from_an_answer(
    connection: Connection, tell: Tell, worker: Claims, row: str
) -> None:
    tell(f"UPDATE magik_workers SET (ended_at, ended) = ({row})")
    assert asked(connection).unknown == {}


def test_what_has_ended_is_said_at_once_and_then_every_fifteen_seconds_while_there_is_more(
    tell: Tell, worker: Claims
) -> None:
    tally, begun = tallied(worker, tell, default=Outcome.FINISHED), 1000.0
    add(tell, queue="mail")
    (job,) = worker.claim("mail", 1, ["Any"], Busy((), ())).jobs
    assert tally.seconds(begun) == 0
    assert [*tally.telling(begun)] == [(0, [1, 0])]
    assert tally.seconds(begun + 1) is None, "an idle worker has nothing to say"
    tally.note(Ended(job, Outcome.FINISHED))
    assert tally.seconds(begun + 1) == 14
    assert [*tally.telling(begun + 15)] == [(0, [0, 1]), (15, [1, 0])]
    tally.note(Ended(job, Outcome.FINISHED))
    assert [*tally.telling(begun + 74)] == [(0, [0, 1]), (59, [0, 1])], "nothing is kept for longer than a minute"
    tally.unsaid()
    assert tally.seconds(begun + 75) == 14, "somebody has the table locked"
    tally.forgotten()
    assert tally.seconds(begun + 75) == 0, "a new row has none of it, and would say that nothing ended"


def test_a_table_that_somebody_has_locked_keeps_no_worker_waiting(tell: Tell, worker: Claims, dsn: str) -> None:
    tally = tallied(worker, tell, default=Outcome.FINISHED)
    with psycopg.connect(dsn) as other:
        other.execute("LOCK TABLE magik_workers")
        publish(worker.connection, worker.names, worker.owner, tally)
    assert tally.seconds(time.monotonic() + TOLD_EVERY) == 0, "it is said later"
    publish(worker.connection, worker.names, worker.owner, tally)
    assert tally.seconds(time.monotonic()) is None


# ---- cost, and what cannot be had -----------------------------------------------------------------------------------


@pytest.mark.parametrize("analysed", [True, False])
def test_rows_that_are_neither_live_nor_asked_for_are_not_read(
    connection: Connection, tell: Tell, worker: Claims, analysed: bool
) -> None:
    add(tell, 10_000, expired_at="now()")
    add(tell, 10_000, finished_at="now()")
    add(tell, 30)
    add(tell, 20, run_at="now() + interval '1 h'", priority="3")
    worker.reread(worker.walks.walk("default", 8, ["Any"], []), ["Any"], [])
    if analysed:
        tell("ANALYZE magik_jobs, magik_claims")
    oid = Asking(connection).oid
    live = {"magik_jobs_claim", "magik_jobs_pkey"}
    assert rows_read(connection, questions.LIVE, live, oid=oid, limit=1000) <= 2 * 50 + 10
    assert rows_read(connection, questions.RUNNING, live, oid=oid) <= 8
    assert rows_read(connection, questions.EXPIRED, {"magik_jobs_expired"}, limit=1000) == 1000


def rows_read(connection: Connection, statement: str, indexes: set[str], **values: Any) -> int:
    """How many rows of the job table a statement read, and that it went by these indexes."""
    with connection.begin():
        connection.execute(text(SETTINGS), {"longest": "10s", "patience": "1s"})
        explained = connection.scalar(text("EXPLAIN (ANALYZE, FORMAT JSON) " + located(statement)), values)
    plan = explained if isinstance(explained, list) else json.loads(str(explained))
    scans = [node for node in nodes(plan[0]["Plan"]) if node.get("Index Name", "").startswith("magik_jobs")]
    assert {scan["Index Name"] for scan in scans} <= indexes
    assert not [
        node for node in nodes(plan[0]["Plan"]) if node["Node Type"] == "Seq Scan" and "magik_jobs" in str(node)
    ]
    lost = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    read = [(each["Actual Rows"] + sum(each.get(why, 0) for why in lost)) * each["Actual Loops"] for each in scans]
    return int(sum(read))


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from nodes(inner)


def test_what_waits_for_a_lock_is_unknown_and_never_zero(connection: Connection, tell: Tell, dsn: str) -> None:
    add(tell, 3)
    tell("INSERT INTO magik_queues (name) VALUES ('mail')")
    with psycopg.connect(dsn) as other:
        other.execute("LOCK TABLE magik_jobs")
        found = asked(connection)
    mail = queue(found, "mail")
    assert (mail.ready, mail.running, mail.errored, mail.expired, mail.oldest_queued_seconds) == (None,) * 5
    assert (mail.workers, mail.paused, found.unserved) == (0, True, None)
    assert set(found.unknown) == {"live jobs", "running jobs", "expired jobs"}
    assert "another session held a lock" in found.unknown["live jobs"]


def test_questions_end_with_the_time_that_they_have(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = set_in(monkeypatch, magik_sa.asking)
    asking = Asking(connection)
    clock.now += LONGEST - 0.2
    with pytest.raises(Exception, match=r"no answer within 0\.2 s"):
        asking.ask("SELECT pg_sleep(60)")
    clock.now += 0.2
    late = status(asking)
    assert (late.queues, late.workers, late.schedules, late.unserved) == (None, None, None, None)
    assert set(late.unknown.values()) == {"the questions before it took all the time"}


def test_nothing_can_be_changed_on_the_way(connection: Connection) -> None:
    with pytest.raises(Exception, match="read-only"):
        Asking(connection).ask("DELETE FROM {schema}magik_jobs")


def test_without_tables_it_is_refused(connection: Connection, tell: Tell) -> None:
    tell("DROP TABLE magik_jobs")
    with pytest.raises(BootError, match="MAGIK_SCHEMA_INCOMPLETE"):
        Asking(connection)
    tell("DROP TABLE magik_schema")
    with pytest.raises(
        BootError, match="MAGIK_SCHEMA_MISSING: No tables of magik_sa in the search_path of the database"
    ):
        Asking(connection)


def test_a_connection_that_is_lost_on_the_way_is_said_to_be(connection: Connection, dsn: str) -> None:
    asking = Asking(connection)
    terminate(dsn, "looking")
    with pytest.raises(BootError, match="MAGIK_DATABASE_UNREACHABLE: The connection was lost"):
        status(asking)
