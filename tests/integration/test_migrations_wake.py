"""The triggers: who is told of which row, and what it costs. Whoever waits holds the queue's flag and listens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import psycopg
import pytest

from magik_sa.migrations.v001 import FLAG_KEY_SQL
from magik_sa.wake import LOWER_FLAG, RAISE_FLAG, SHARE_FLAG

Session = psycopg.Connection[Any]

OID = "'magik_jobs'::regclass::oid"
ROW = "00000000-0000-7000-8000-000000000001"
SCHEDULED = f"INSERT INTO magik_jobs (id, job_class, run_at) VALUES ('{ROW}', 'X', now() + interval '1 hour')"
DUE = f"INSERT INTO magik_jobs (id, job_class) VALUES ('{ROW}', 'X')"
DEAD = f"INSERT INTO magik_jobs (id, job_class, expired_at) VALUES ('{ROW}', 'X', now())"
END = ""  # what the tests themselves send last; no queue has an empty name


class Waiting:
    """An idle worker, as far as a producer can see one: it listens, and holds the flags of `queues`.

    ``with Waiting(dsn, "default") as waiting: …; assert waiting.told() == [...]``
    """

    def __init__(self, dsn: str, *queues: str) -> None:
        self.dsn = dsn
        self.session: Session = psycopg.connect(dsn, autocommit=True)
        self.channel = f"magik_{_one(self.session, f'SELECT {OID}::bigint')}"
        self.session.execute(f"LISTEN {self.channel}".encode())
        for queue in queues:
            assert self.raise_flag(queue)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def raise_flag(self, queue: str) -> bool:
        return bool(
            _one(self.session, f"SELECT pg_try_advisory_lock({FLAG_KEY_SQL.format(table=OID, queue='%s')})", queue)
        )

    def told(self) -> list[str]:
        """The queues named in what came up to now: notifications arrive in the order of the commits, ours last."""
        with psycopg.connect(self.dsn, autocommit=True) as last:
            last.execute("SELECT pg_notify(%s, %s)", [self.channel, END])
        queues: list[str] = []
        for notification in self.session.notifies(timeout=20):
            if notification.payload == END:
                return sorted(queues)
            queues.append(notification.payload)
        raise AssertionError("the last notification did not come")


def _one(session: Session, query: str, *values: Any) -> Any:
    row = session.execute(query.encode(), values or None).fetchone()
    return row[0] if row else None


@pytest.fixture
def waiting(dsn: str) -> Iterator[Waiting]:
    with Waiting(dsn, "default") as waiting:
        yield waiting


@pytest.fixture
def producer(dsn: str) -> Iterator[Session]:
    """A session that commits every statement."""
    with psycopg.connect(dsn, autocommit=True) as session:
        yield session


def run(session: Session, statement: str) -> None:
    session.execute(statement.encode())


# ---- which rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("DEFAULT, NULL, NULL", ["default"]),
        ("'-infinity', NULL, NULL", ["default"]),
        ("now() + interval '4 s', NULL, NULL", ["default"]),
        ("now() + interval '1 minute', NULL, NULL", []),
        ("'infinity', NULL, NULL", []),
        ("now(), now(), NULL", []),
        ("now(), NULL, now()", []),
    ],
)
def test_an_insert_tells_of_live_rows_that_are_due(
    waiting: Waiting, producer: Session, row: str, told: list[str]
) -> None:
    run(producer, f"INSERT INTO magik_jobs (job_class, run_at, finished_at, expired_at) VALUES ('X', {row})")
    assert waiting.told() == told


@pytest.mark.parametrize(
    ("before", "change", "told"),
    [
        (SCHEDULED, "run_at = now()", ["default"]),
        (SCHEDULED, "run_at = now() + interval '4 s'", ["default"]),
        (SCHEDULED, "run_at = now() + interval '1 minute'", []),
        (SCHEDULED, "priority = 1", []),
        (DEAD, "expired_at = NULL", ["default"]),
        (DEAD, "expired_at = NULL, run_at = now() + interval '1 minute'", []),
        (DUE, "error_count = error_count + 1, last_error = 'once more'", ["default"]),
        (DUE, "error_count = error_count + 1, run_at = now() + interval '1 minute'", []),
        (DUE, """args = '{"cursor": 7}', version = version + 1""", []),
        (DUE, "finished_at = now()", []),
        (DUE, "expired_at = now()", []),
        (DUE, "queue = 'other'", []),
        (
            DUE.replace("job_class)", "job_class, queue)").replace("'X')", "'X', 'other')"),
            "queue = 'default'",
            ["default"],
        ),
    ],
)
def test_an_update_tells_of_rows_that_it_made_claimable(
    waiting: Waiting, producer: Session, before: str, change: str, told: list[str]
) -> None:
    run(producer, before)
    waiting.told()
    run(producer, f"UPDATE magik_jobs SET {change}")
    assert waiting.told() == told


def test_a_delete_tells_nobody(waiting: Waiting, producer: Session) -> None:
    run(producer, DUE)
    waiting.told()
    run(producer, "DELETE FROM magik_jobs")
    assert waiting.told() == []


def test_a_repeat_tells_nobody_and_copy_does(waiting: Waiting, producer: Session) -> None:
    keyed = "INSERT INTO magik_jobs (job_class, key_digest) VALUES ('X', 'k') ON CONFLICT DO NOTHING"
    run(producer, keyed)
    assert waiting.told() == ["default"]
    run(producer, keyed)
    assert waiting.told() == []
    with producer.cursor().copy("COPY magik_jobs (job_class, args) FROM STDIN") as copy:
        copy.write_row(["X", "{}"])
        copy.write_row(["Y", "{}"])
    assert waiting.told() == ["default"]


def test_what_is_due_is_measured_by_the_clock_not_by_the_start_of_the_transaction(
    waiting: Waiting, producer: Session
) -> None:
    with producer.transaction():
        run(producer, "SELECT pg_sleep(1)")  # the transaction grows old
        run(producer, "INSERT INTO magik_jobs (job_class, run_at) VALUES ('X', now() + interval '5.5 s')")
    assert waiting.told() == ["default"]


# ---- who, and how often ---------------------------------------------------------------------------------------------


def test_where_nobody_waits_nobody_is_told(dsn: str, producer: Session) -> None:
    with Waiting(dsn) as listening:
        run(producer, DUE)
        run(producer, "UPDATE magik_jobs SET run_at = now()")
        assert listening.told() == []


def test_only_queues_that_somebody_waits_for_are_told_each_once(dsn: str, producer: Session) -> None:
    with Waiting(dsn, "a", "b") as waiting:
        rows = """INSERT INTO magik_jobs (job_class, queue)
                  SELECT 'X', ('{a,b,c}'::text[])[1 + n % 3] FROM generate_series(1, 1000) n"""
        with producer.transaction():
            for _ in range(3):
                run(producer, rows)
            run(producer, "UPDATE magik_jobs SET run_at = now() - interval '1 s'")
        assert waiting.told() == ["a", "b"]


def test_what_is_rolled_back_tells_nobody(waiting: Waiting, producer: Session) -> None:
    with producer.transaction(force_rollback=True):
        run(producer, DUE)
    with producer.transaction():
        with producer.transaction(force_rollback=True):
            run(producer, DUE)
        run(producer, SCHEDULED)
    assert waiting.told() == []


def test_a_statement_may_wake_nobody_on_purpose(waiting: Waiting, producer: Session) -> None:
    with producer.transaction():
        run(producer, "SET LOCAL magik_sa.wake = 'off'")
        run(producer, DUE)
        run(producer, "UPDATE magik_jobs SET run_at = now() - interval '1 s'")
    assert waiting.told() == []
    run(producer, "INSERT INTO magik_jobs (job_class) VALUES ('X')")  # the setting is '' now, no longer unset
    assert waiting.told() == ["default"]


def test_a_session_is_not_told_of_what_it_does_itself(waiting: Waiting) -> None:
    run(waiting.session, DUE)
    assert waiting.told() == []


def test_an_open_transaction_keeps_a_worker_from_sleeping_until_its_rows_are_visible(
    dsn: str, producer: Session
) -> None:
    with Waiting(dsn) as worker:
        with producer.transaction():
            run(producer, DUE)
            assert not worker.raise_flag("default")
            assert worker.raise_flag("other")
        assert worker.raise_flag("default")
        assert _one(worker.session, "SELECT count(*) FROM magik_jobs") == 1


def test_a_job_that_saves_where_it_has_got_to_does_not_keep_workers_awake(dsn: str, producer: Session) -> None:
    run(producer, DUE)
    with Waiting(dsn) as worker, producer.transaction():
        run(producer, "UPDATE magik_jobs SET version = version + 1")
        assert worker.raise_flag("default")


# ---- names and limits -----------------------------------------------------------------------------------------------


def test_no_name_is_looked_up_in_the_search_path(waiting: Waiting, producer: Session) -> None:
    for decoy in ("added", "before", "after"):
        run(producer, f"CREATE TEMP TABLE {decoy} (LIKE magik_jobs)")
    run(producer, "CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT 1/0'")
    run(producer, "SET search_path = ''")
    run(producer, "INSERT INTO public.magik_jobs (job_class) VALUES ('X')")
    assert waiting.told() == ["default"]
    run(producer, "UPDATE public.magik_jobs SET run_at = now()")
    assert waiting.told() == ["default"]


def test_the_longest_name_of_a_queue(dsn: str, producer: Session) -> None:
    queue = "é" * 127 + "e"
    with Waiting(dsn, queue) as waiting:
        producer.execute("INSERT INTO magik_jobs (job_class, queue) VALUES ('X', %s)", [queue])
        assert waiting.told() == [queue]


def test_a_statement_takes_no_more_than_a_hundred_locks_however_many_queues(dsn: str, producer: Session) -> None:
    with Waiting(dsn) as listening:
        rows = "INSERT INTO magik_jobs (job_class, queue) SELECT 'X', 'q' || n FROM generate_series(1, 1000) n"
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        with producer.transaction():
            run(producer, rows)
            assert _one(producer, held) == 100
        assert len(listening.told()) == 900


def test_a_plan_made_for_one_row_serves_for_very_many(waiting: Waiting, producer: Session) -> None:
    run(producer, "SET statement_timeout = '30s'")
    run(producer, DUE)
    run(producer, "UPDATE magik_jobs SET run_at = now()")
    run(producer, "INSERT INTO magik_jobs (job_class) SELECT 'X' FROM generate_series(1, 100000)")
    run(producer, "UPDATE magik_jobs SET run_at = now()")
    assert waiting.told() == ["default", "default", "default", "default"]


@pytest.mark.parametrize("oid", [2_147_483_648, 4_294_967_295])
def test_the_flag_of_a_table_whose_oid_is_no_int(producer: Session, oid: int) -> None:
    key = FLAG_KEY_SQL.format(table=f"{oid}::oid", queue="'default'")
    assert _one(producer, f"SELECT pg_try_advisory_lock({key})") is True
    assert _one(producer, "SELECT classid::bigint FROM pg_locks WHERE locktype = 'advisory'") == oid


@pytest.mark.parametrize("statement", [RAISE_FLAG, LOWER_FLAG, SHARE_FLAG])
def test_workers_and_triggers_mean_the_same_flag(statement: str) -> None:
    assert FLAG_KEY_SQL.format(table="%(oid)s::oid", queue="%(queue)s") in statement
