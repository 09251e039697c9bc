"""Pruning on a real database: what goes, what stays, in which portions, and beside whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session as OrmSession

from magik_sa import prune
from magik_sa.errors import DeclarationError, EnqueueError
from tests.jobs import kept
from tests.tools.rows import DAY, WEEK, fill, one, rows
from tests.tools.sessions import pids
from tests.tools.waiting import until

# What each DELETE took away, and in which transaction.
COUNTED = """
CREATE TABLE batches (xact xid8 DEFAULT pg_current_xact_id(), rows int);
CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  WHILE (SELECT count(*) FROM batches) >= 2 AND NOT pg_try_advisory_xact_lock_shared(42) LOOP
    PERFORM pg_sleep(0.02);
  END LOOP;
  INSERT INTO batches (rows) SELECT count(*) FROM gone;
  RETURN NULL;
END $$;
CREATE TRIGGER counted AFTER DELETE ON magik_jobs REFERENCING OLD TABLE AS gone
   FOR EACH STATEMENT EXECUTE FUNCTION counted()"""


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        yield connection


# ---- what goes, what stays ------------------------------------------------------------------------------------------


def test_each_class_keeps_its_rows_as_long_as_it_says(app: psycopg.Connection[Any], connection: Connection) -> None:
    fill(app, 3, DAY)
    fill(app, 2, DAY, "23 hours")
    fill(app, 4, WEEK)
    fill(app, 5, WEEK, "8 days")
    done = prune(connection)
    assert (done.finished, done.failed, done.left) == ({DAY: 3, WEEK: 5}, {}, [])
    assert (rows(app, f"job_class = '{DAY}'"), rows(app, f"job_class = '{WEEK}'")) == (2, 4)


def test_what_nobody_named_stays(app: psycopg.Connection[Any], connection: Connection) -> None:
    fill(app, 2, "Gone")
    fill(app, 2, kept.Fleeting.__name__)
    fill(app, 3, DAY, "900 days", "expired_at")
    fill(app, 1, DAY, "900 days", "run_at")
    app.execute("INSERT INTO magik_jobs (job_class, finished_at, expired_at) VALUES ('KeptADay', '-infinity', now())")
    app.execute("INSERT INTO magik_effects (scope, key_digest, done_at) VALUES ('s', sha256('a'), '-infinity')")
    done = prune(connection)
    assert (done.finished, done.expired, done.effects) == ({}, 0, 0)
    assert done.left == sorted(["Gone", kept.Fleeting.__name__])
    assert (rows(app), one(app, "SELECT count(*) FROM magik_effects")) == (9, 1)


def test_an_age_holds_for_all_classes_or_for_the_one_that_is_named(
    app: psycopg.Connection[Any], connection: Connection
) -> None:
    for cls in ("Gone", DAY, WEEK):
        fill(app, 2, cls, "40 days")
        fill(app, 1, cls, "29 days")
    assert prune(connection, older_than="30d", job_class="Gone").finished == {"Gone": 2}
    assert rows(app) == 7
    assert prune(connection, older_than="30d").finished == {DAY: 2, WEEK: 2}
    assert rows(app) == 3


def test_dead_letters_and_effects_go_where_they_are_named(app: psycopg.Connection[Any], connection: Connection) -> None:
    fill(app, 3, DAY, "91 days", "expired_at")
    fill(app, 2, WEEK, "91 days", "expired_at")
    fill(app, 1, WEEK, "89 days", "expired_at")
    app.execute(
        "INSERT INTO magik_effects SELECT s, sha256(i::text::bytea), now() - i * interval '1 d'"
        " FROM generate_series(1, 1200) i, unnest('{a,b}'::text[]) s"
    )
    assert prune(connection, expired_older_than="90d", job_class=WEEK).expired == 2
    assert prune(connection, expired_older_than="90d", effects_older_than="1000d").expired == 3
    assert rows(app) == 1
    assert one(app, "SELECT count(*) FROM magik_effects") == 2 * 999  # of 2,400, read in three pages


def test_in_a_table_in_parts_no_effect_goes_that_is_young(app: psycopg.Connection[Any], connection: Connection) -> None:
    """A row's place is its place in one of them only."""
    app.execute("ALTER TABLE magik_effects RENAME TO others")
    app.execute("CREATE TABLE magik_effects (LIKE others INCLUDING DEFAULTS) PARTITION BY LIST (scope)")
    app.execute("ALTER TABLE magik_effects ADD PRIMARY KEY (scope, key_digest)")
    app.execute("ALTER TABLE magik_effects ATTACH PARTITION others DEFAULT")
    app.execute("CREATE TABLE young PARTITION OF magik_effects FOR VALUES IN ('young')")
    for scope, age in (("old", "9 d"), ("young", "1 h")):
        row = "INSERT INTO magik_effects SELECT %s, sha256(i::text::bytea), now() - %s::interval FROM"
        app.execute(f"{row} generate_series(1, 5) i".encode(), (scope, age))
    assert prune(connection, effects_older_than="1d").effects == 5
    assert one(app, "SELECT count(*) FROM magik_effects WHERE scope = 'young'") == 5


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_dry_run_counts_the_same_and_removes_nothing(
    app: psycopg.Connection[Any], connection: Connection, dry_run: bool
) -> None:
    fill(app, 1100, DAY)
    fill(app, 2, DAY, "91 days", "expired_at")
    app.execute("INSERT INTO magik_effects (scope, key_digest, done_at) VALUES ('s', sha256('a'), '-infinity')")
    app.execute("INSERT INTO magik_claims VALUES (gen_random_uuid(), 'w', 1, now())")
    app.execute("INSERT INTO magik_workers VALUES (1, now(), 'w', '{default}')")
    done = prune(connection, expired_older_than="90d", effects_older_than="1w", dry_run=dry_run)
    assert (done.finished, done.expired, done.effects, done.notes, done.workers) == ({DAY: 1100}, 2, 1, 1, 1)
    left = [rows(app), *(one(app, f"SELECT count(*) FROM magik_{name}") for name in ("effects", "claims", "workers"))]
    assert left == ([1102, 1, 1, 1] if dry_run else [0, 0, 0, 0])


def test_only_notes_without_a_session_and_without_a_job_go(
    app: psycopg.Connection[Any], connection: Connection
) -> None:
    """A dead worker's note of a job that is there tells of its interruption; a live worker's notes are its own."""
    note = "INSERT INTO magik_claims SELECT {}, '{}', pid, backend_start FROM {}"
    live, dead = "pg_stat_activity WHERE pid = pg_backend_pid()", "(VALUES (1, now())) d (pid, backend_start)"
    job = "(SELECT id FROM magik_jobs LIMIT 1)"
    fill(app, 1, DAY, "0 s", "run_at")
    for of, worker, session in (
        (job, "interrupted", dead),
        ("gen_random_uuid()", "orphan", dead),
        ("gen_random_uuid()", "ending", live),
    ):
        app.execute(note.format(of, worker, session).encode())
    assert prune(connection).notes == 1
    assert app.execute("SELECT worker FROM magik_claims ORDER BY 1").fetchall() == [("ending",), ("interrupted",)]


def test_the_row_of_a_dead_worker_stays_while_another_lives_to_be_woken_by_it(
    app: psycopg.Connection[Any], connection: Connection
) -> None:
    app.execute("INSERT INTO magik_workers VALUES (1, now(), 'dead', '{default}')")
    app.execute(
        "INSERT INTO magik_workers SELECT pid, backend_start, 'live', '{default}' FROM pg_stat_activity"
        " WHERE pid = pg_backend_pid()"
    )
    assert prune(connection).workers == 0
    app.execute("DELETE FROM magik_workers WHERE name = 'live'")
    assert prune(connection).workers == 1


# ---- in which portions, and beside whom -----------------------------------------------------------------------------


def test_it_removes_in_bounded_batches_of_one_transaction_each(
    app: psycopg.Connection[Any], connection: Connection
) -> None:
    app.execute(COUNTED.encode())
    fill(app, 2500, DAY)
    assert prune(connection).finished == {DAY: 2500}
    found = app.execute("SELECT count(DISTINCT xact), array_agg(rows ORDER BY xact) FROM batches").fetchone()
    assert found == (3, [1000, 1000, 500])


def test_no_worker_is_woken(app: psycopg.Connection[Any], connection: Connection, dsn: str) -> None:
    """The listener holds the flag of the queue, as a worker does that waits: whatever is to be told, it is told."""
    fill(app, 1200, DAY)
    fill(app, 5, DAY, "91 days", "expired_at")
    oid = one(app, "SELECT 'magik_jobs'::regclass::oid::bigint")
    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute(f"LISTEN magik_{oid}".encode())
        listener.execute("SELECT pg_advisory_lock(%s::oid::int, hashtext('default'))", (oid,))
        prune(connection, expired_older_than="90d")
        assert rows(app) == 0
        app.execute("SELECT pg_notify(%s, 'the end')", (f"magik_{oid}",))
        heard = next(listener.notifies(timeout=5))
        assert heard.payload == "the end"
        fill(app, 1, DAY, "0 s", "run_at")  # and of this it is told
        assert next(listener.notifies(timeout=5)).payload == "default"


def test_a_row_that_somebody_holds_is_left_and_one_that_comes_back_to_life_stays(
    app: psycopg.Connection[Any], connection: Connection, dsn: str
) -> None:
    fill(app, 10, DAY)
    with closing(psycopg.connect(dsn)) as somebody:
        held = somebody.execute("SELECT id FROM magik_jobs ORDER BY id LIMIT 1 FOR UPDATE").fetchone()
        somebody.execute(
            "UPDATE magik_jobs SET finished_at = NULL WHERE id = (SELECT id FROM magik_jobs ORDER BY id DESC LIMIT 1)"
        )
        assert prune(connection).finished == {DAY: 8}
        somebody.commit()
    assert held is not None
    assert prune(connection).finished == {DAY: 1}
    assert rows(app, "finished_at IS NULL") == rows(app) == 1


def test_two_at_once_share_the_work(app: psycopg.Connection[Any], engine: Engine) -> None:
    fill(app, 8000, DAY)
    done, barrier = list[int](), threading.Barrier(2)

    def work() -> None:
        with engine.connect() as connection:
            barrier.wait(10)
            done.append(prune(connection).finished.get(DAY, 0))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(done) == 8000
    assert rows(app) == 0


def test_one_that_is_killed_in_the_middle_has_removed_what_it_has_removed(
    app: psycopg.Connection[Any], engine: Engine, dsn: str
) -> None:
    app.execute(COUNTED.encode())
    fill(app, 3500, DAY)
    ended = list[BaseException]()

    def work() -> None:
        with engine.connect() as connection, pytest.raises(DBAPIError) as caught:
            prune(connection)
        ended.append(caught.value)

    app.execute("SELECT pg_advisory_lock(42)")
    thread = threading.Thread(target=work)
    thread.start()
    (busy,) = until(lambda: pids(dsn, query="%DELETE FROM magik_jobs%"))
    until(lambda: one(app, f"SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = {busy}"))
    assert one(app, f"SELECT pg_terminate_backend({busy}, 5000)")
    thread.join(10)
    assert ended
    app.execute("SELECT pg_advisory_unlock(42)")
    assert rows(app) == 1500
    with engine.connect() as connection:
        assert prune(connection).finished == {DAY: 1500}


def test_what_cannot_be_removed_keeps_nothing_else_from_it(
    app: psycopg.Connection[Any], connection: Connection
) -> None:
    fill(app, 3, DAY)
    fill(app, 3, WEEK, "8 days")
    app.execute("CREATE TABLE receipts AS SELECT id FROM magik_jobs WHERE job_class = 'KeptADay'")
    app.execute("ALTER TABLE receipts ADD FOREIGN KEY (id) REFERENCES magik_jobs")
    done = prune(connection)
    assert done.finished == {WEEK: 3}
    assert list(done.failed) == [DAY]
    assert 'violates foreign key constraint "receipts_id_fkey"' in done.failed[DAY]


def test_it_waits_for_no_table_longer_than_two_seconds(connection: Connection, dsn: str) -> None:
    with closing(psycopg.connect(dsn)) as somebody:
        somebody.execute("LOCK magik_claims")
        failed = prune(connection).failed
    assert failed == {"notes": "LockNotAvailable: canceling statement due to lock timeout"}


def test_each_batch_begins_where_the_last_one_ended(
    app: psycopg.Connection[Any], connection: Connection, dsn: str
) -> None:
    """Somebody's snapshot keeps what was removed: without that beginning the tenth batch walks past nine."""
    fill(app, 10_000, DAY)
    app.execute("VACUUM ANALYZE magik_jobs")
    with closing(psycopg.connect(dsn)) as reporting:
        reporting.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reporting.execute("SELECT 1 FROM magik_jobs LIMIT 1")
        before = _read(app)
        assert prune(connection).finished == {DAY: 10_000}
        connection.execute(text("SELECT pg_stat_force_next_flush()"))
        connection.rollback()
        assert _read(app) - before < 15_000


def _read(app: psycopg.Connection[Any]) -> int:
    """Entries that scans of the index of finished rows returned."""
    return int(one(app, "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'magik_jobs_finished'"))


# ---- refused --------------------------------------------------------------------------------------------------------


def test_it_takes_a_connection_outside_of_a_transaction(engine: Engine, connection: Connection) -> None:
    with OrmSession(engine) as session, pytest.raises(EnqueueError, match="MAGIK_PRUNE_INVALID"):
        prune(session)
    connection.execute(text("SELECT 1"))
    with pytest.raises(EnqueueError, match="MAGIK_PRUNE_INVALID"):
        prune(connection)
    assert connection.in_transaction()


def test_a_class_of_which_nothing_is_known_is_refused_with_what_was_meant(connection: Connection) -> None:
    with pytest.raises(EnqueueError, match=r"MAGIK_PRUNE_INVALID.*did you mean 'KeptADay'") as refused:
        prune(connection, job_class="KeptADya")
    assert refused.value.field == "job_class"


@pytest.mark.parametrize("name", ["older_than", "expired_older_than", "effects_older_than"])
@pytest.mark.parametrize("age", ["30", 30, "-1d", "", "0s"])
def test_an_age_is_a_duration(connection: Connection, name: str, age: Any) -> None:
    with pytest.raises(DeclarationError, match="MAGIK_DURATION_INVALID") as refused:
        prune(connection, **{name: age})
    assert refused.value.field == name
