"""The tables of version 1: made, taken away, made again; where, by whom, and how long they may wait."""

from __future__ import annotations

import io
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from psycopg import sql
from sqlalchemy import Connection, Engine, NullPool, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from magik_sa.errors import MagikError
from magik_sa.migrations import HEAD, installed_version, migrate, v001
from tests.tools.dump import dump
from tests.tools.server import Server
from tests.tools.sessions import pids
from tests.tools.waiting import until
from tests.tools.workers import dsn_of

OURS = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname LIKE 'magik%' AND c.relkind = 'r'
UNION ALL
SELECT n.nspname, p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.proname LIKE 'magik%'
 ORDER BY 1, 2"""

NAMES = [
    "magik_claims",
    "magik_effects",
    "magik_job_schedules",
    "magik_jobs",
    "magik_jobs_added",
    "magik_jobs_changed",
    "magik_jobs_ended",
    "magik_queues",
    "magik_queues_changed",
    "magik_schema",
    "magik_workers",
]


@contextmanager
def operations(url: str) -> Iterator[tuple[Any, Connection]]:
    """What a revision calls `op`, in one transaction, and the connection beneath."""
    with transaction(url) as connection:
        yield Operations(MigrationContext.configure(connection)), connection


@contextmanager
def transaction(url: str) -> Iterator[Connection]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        yield connection


def up(url: str) -> None:
    with operations(url) as (op, _):
        op.magik_upgrade(version=1)


def down(url: str, lock_timeout: str = "0") -> None:
    with operations(url) as (op, connection):
        connection.execute(text(f"SET LOCAL lock_timeout = '{lock_timeout}'"))
        op.magik_downgrade(version=0)


# ---- up and down ----------------------------------------------------------------------------------------------------


def test_down_undoes_up_exactly(empty_database: str) -> None:
    nothing = dump(empty_database)
    up(empty_database)
    first = dump(empty_database)
    down(empty_database)
    assert dump(empty_database) == nothing
    up(empty_database)
    assert dump(empty_database) == first
    assert "magik_jobs_claim" in first


def test_the_installed_version(empty_database: str) -> None:
    with operations(empty_database) as (op, connection):
        assert installed_version(connection) == 0
        op.magik_upgrade(version=1)
        assert installed_version(connection) == HEAD == 1
        op.magik_downgrade(version=0)
        assert installed_version(connection) == 0


def test_repeating_a_step_does_nothing(database: str) -> None:
    before = dump(database)
    up(database)
    assert dump(database) == before
    down(database)
    down(database)
    with transaction(database) as connection:
        assert installed_version(connection) == 0


def test_without_a_chain(empty_database: str) -> None:
    with transaction(empty_database) as connection:
        assert migrate(connection) == 0
        assert installed_version(connection) == HEAD
        assert migrate(connection) == HEAD
        with pytest.raises(MagikError, match="MAGIK_DOWNGRADE_UNCONFIRMED"):
            migrate(connection, 0, downgrade=False)
        assert installed_version(connection) == HEAD
        assert migrate(connection, 0) == HEAD
        assert installed_version(connection) == 0


@pytest.mark.parametrize("step", ["magik_upgrade", "magik_downgrade"])
@pytest.mark.parametrize("version", [HEAD + 1, -1])
def test_a_version_that_this_release_does_not_know_is_refused(empty_database: str, step: str, version: int) -> None:
    with operations(empty_database) as (op, connection), pytest.raises(MagikError) as refused:
        getattr(op, step)(version=version)
    assert refused.value.code == "MAGIK_SCHEMA_AHEAD"
    assert refused.value.field == "version"
    with transaction(empty_database) as connection:
        assert connection.execute(text(OURS)).all() == []


def test_tables_of_a_newer_release_are_left_alone(database: str) -> None:
    with transaction(database) as connection:
        connection.execute(text("UPDATE magik_schema SET version = 99"))
    before = dump(database)
    for step in (up, down):
        with pytest.raises(MagikError, match="MAGIK_SCHEMA_AHEAD"):
            step(database)
    assert dump(database) == before


def test_tables_made_by_halves_are_reported_and_left_as_they_are(empty_database: str) -> None:
    with transaction(empty_database) as connection:
        connection.execute(text("CREATE TABLE magik_queues (name text)"))
    with pytest.raises(
        MagikError, match="MAGIK_SCHEMA_INCOMPLETE.* there is table magik_queues; missing: table magik_jobs,"
    ):
        up(empty_database)
    with transaction(empty_database) as connection:
        assert connection.execute(text(OURS)).all() == [("public", "magik_queues")]


@pytest.mark.parametrize("step", [up, down])
@pytest.mark.parametrize(
    ("statement", "missing"),
    [
        ("DROP TABLE magik_queues", "missing: table magik_queues, trigger magik_queues_changed."),
        ("DROP INDEX magik_jobs_key", "The tables are not whole; missing: index magik_jobs_key."),
        ("DROP TRIGGER magik_jobs_added ON magik_jobs", "missing: trigger magik_jobs_added."),
        (
            "DROP FUNCTION magik_jobs_changed CASCADE",
            "missing: function magik_jobs_changed, trigger magik_jobs_changed.",
        ),
        ("DROP TABLE magik_schema", "No version of the tables is recorded, yet .*; missing: table magik_schema."),
        ("DELETE FROM magik_schema", "No version of the tables is recorded, yet .* 14 more; missing: record of it."),
    ],
)
def test_half_of_the_tables_is_neither_completed_nor_removed(
    database: str, step: Callable[[str], None], statement: str, missing: str
) -> None:
    with transaction(database) as connection:
        connection.execute(text(statement))
    before = dump(database)
    with pytest.raises(MagikError, match=f"MAGIK_SCHEMA_INCOMPLETE: .*{missing}"):
        step(database)
    assert dump(database) == before


def test_of_two_at_once_one_does_it_and_the_other_finds_it_done(empty_database: str) -> None:
    failures: list[BaseException] = []

    def other() -> None:
        try:
            up(empty_database)
        except BaseException as error:
            failures.append(error)

    with operations(empty_database) as (op, _):
        op.magik_upgrade(version=1)
        second = threading.Thread(target=other)
        second.start()
        until(lambda: pids(dsn_of(empty_database), query="%pg_advisory_xact_lock%"), what="the second one waits")
    second.join(20)
    assert not second.is_alive()
    assert failures == []
    with transaction(empty_database) as connection:
        assert installed_version(connection) == 1


# ---- bounded locks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lock_timeout", ["0", "7s"])
def test_the_bound_of_the_application_is_put_back(empty_database: str, lock_timeout: str) -> None:
    with operations(empty_database) as (op, connection):
        connection.execute(text(f"SET LOCAL lock_timeout = '{lock_timeout}'"))
        op.magik_upgrade(version=1)
        assert connection.scalar(text("SHOW lock_timeout")) == lock_timeout
        op.magik_downgrade(version=0)
        assert connection.scalar(text("SHOW lock_timeout")) == lock_timeout
    with transaction(empty_database) as connection:
        assert connection.scalar(text("SHOW lock_timeout")) == "0"


def test_a_lock_that_is_not_free_is_waited_for_not_longer_than_the_bound(database: str, dsn: str) -> None:
    with psycopg.connect(dsn) as reader:
        reader.execute("SELECT FROM magik_jobs")
        began = time.monotonic()
        with pytest.raises(OperationalError, match="lock timeout"):
            down(database)
        assert 4.5 < time.monotonic() - began < 15
    with transaction(database) as connection:
        assert installed_version(connection) == 1


def test_a_shorter_bound_of_the_application_holds(database: str, dsn: str) -> None:
    with psycopg.connect(dsn) as reader:
        reader.execute("SELECT FROM magik_jobs")
        began = time.monotonic()
        with pytest.raises(OperationalError, match="lock timeout"):
            down(database, lock_timeout="50ms")
        assert time.monotonic() - began < 4


# ---- whose and where ------------------------------------------------------------------------------------------------


@pytest.fixture
def tenant(server: Server, empty_database: str) -> Iterator[Callable[[str], str]]:
    """Gives the URL of a role that owns one schema and may do nothing else: no CREATE on public, no superuser."""
    if not server.superuser:
        pytest.skip("making roles needs a superuser")
    name, role = str(make_url(empty_database).database), f"tenant_{secrets.token_hex(4)}"

    def made(schema: str) -> str:
        server.execute(sql.SQL("CREATE ROLE {} LOGIN NOSUPERUSER PASSWORD 'secret'").format(sql.Identifier(role)))
        server.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC", name)
        statement = sql.SQL("CREATE SCHEMA {} AUTHORIZATION {}")
        server.execute(statement.format(sql.Identifier(schema), sql.Identifier(role)), name)
        server.execute("CREATE SCHEMA hidden", name)
        return make_url(empty_database).set(username=role, password="secret").render_as_string(hide_password=False)

    yield made
    server.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)), name)
    server.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)), name)


SCHEMAS = ["jobs", 'My "jobs": {schema} 100%s', "it's $1 \\n %1$s", "s" * 63]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_in_a_configured_schema(tenant: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, schema: str) -> None:
    url = tenant(schema)
    monkeypatch.setenv("MAGIK_SCHEMA", schema)
    up(url)
    quoted = '"' + schema.replace('"', '""') + '"'
    with transaction(url) as connection:
        assert installed_version(connection) == 1
        assert [tuple(row) for row in connection.execute(text(OURS))] == [(schema, name) for name in NAMES]
        connection.exec_driver_sql("SET LOCAL search_path = ''")
        table = f"{quoted}.magik_jobs".replace("%", "%%")
        connection.exec_driver_sql(f"INSERT INTO {table} (job_class, args) VALUES ('X', '{{}}')")
        connection.exec_driver_sql(f"UPDATE {table} SET run_at = now()")
    down(url)
    with transaction(url) as connection:
        assert connection.execute(text(OURS)).all() == []
    up(url)
    down(url)


def test_a_script_of_a_driver_that_doubles_percent_signs_is_the_same(empty_database: str) -> None:
    """As where an env.py does not say which style a script's parameters have."""
    script = io.StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql", opts={"as_sql": True, "output_buffer": script, "transactional_ddl": False}
    )
    assert context.dialect.paramstyle == "pyformat"
    v001.upgrade(Operations(context))
    with transaction(empty_database) as connection:
        driver: Any = connection.connection.driver_connection
        driver.execute(script.getvalue())
        assert sorted(connection.scalars(text("SELECT proname FROM pg_proc WHERE proname LIKE 'magik%'"))) == sorted(
            v001.PARTS["function"]
        )


def test_where_the_search_path_leads(tenant: Callable[[str], str], server: Server, empty_database: str) -> None:
    url = tenant("jobs")
    set_path = sql.SQL("ALTER ROLE {} SET search_path = jobs").format(sql.Identifier(str(make_url(url).username)))
    server.execute(set_path)
    for _ in range(2):
        up(url)
        with transaction(url) as connection:
            assert installed_version(connection) == 1
            assert [tuple(row) for row in connection.execute(text(OURS))] == [("jobs", name) for name in NAMES]
            connection.execute(text("INSERT INTO magik_jobs (job_class, args) VALUES ('X', '{}')"))
        down(url)
        with transaction(url) as connection:
            assert connection.execute(text(OURS)).all() == []


def test_two_installations_in_one_database(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with transaction(empty_database) as connection:
        connection.execute(text("CREATE SCHEMA a"))
        connection.execute(text("CREATE SCHEMA b"))
    for schema in ("a", "b"):
        monkeypatch.setenv("MAGIK_SCHEMA", schema)
        with transaction(empty_database) as connection:
            assert installed_version(connection) == 0
        up(empty_database)
    one, two = (dump(empty_database, f"--schema={schema}") for schema in ("a", "b"))
    for in_one, in_two in (("a.", "b."), ("SCHEMA a", "SCHEMA b"), ('"a".', '"b".')):
        one = one.replace(in_one, in_two)
    assert one == two.replace("a.", "b.")


# ---- what a row must be ---------------------------------------------------------------------------------------------


def test_a_job_in_plain_sql_gets_every_default(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO magik_jobs (job_class) VALUES ('X')"))
        connection.execute(text("INSERT INTO magik_jobs (job_class, args) VALUES ('X','{}')"))
        statement = text("SELECT *, run_at = now() AS now, enqueued_at = now() AS at FROM magik_jobs")
        rows = [dict(row) for row in connection.execute(statement).mappings()]
    assert len({row["id"] for row in rows}) == 2
    for row in rows:
        assert (row["queue"], row["priority"], row["args"], row["version"]) == ("default", 100, {}, 1)
        assert (row["error_count"], row["now"], row["at"]) == (0, True, True)
        nothing = ["context", "key_digest", "last_error", "failed_at", "finished_at", "expired_at"]
        assert [row[name] for name in nothing] == [None] * 6


@pytest.mark.parametrize(
    ("row", "check"),
    [
        ({"job_class": ""}, "magik_jobs_job_class_check"),
        ({"job_class": "é" * 128}, "magik_jobs_job_class_check"),
        ({"queue": ""}, "magik_jobs_queue_check"),
        ({"queue": "é" * 128}, "magik_jobs_queue_check"),
        ({"args": "[]"}, "magik_jobs_args_check"),
        ({"args": "null"}, "magik_jobs_args_check"),
        ({"args": None}, 'null value in column "args"'),
        ({"job_class": None}, 'null value in column "job_class"'),
    ],
)
def test_a_row_that_is_no_job_is_refused(engine: Engine, row: dict[str, str | None], check: str) -> None:
    with engine.begin() as connection, pytest.raises(IntegrityError, match=check):
        _insert(connection, **{"job_class": "X", **row})


def test_lengths_are_counted_in_bytes(engine: Engine) -> None:
    with engine.begin() as connection:
        _insert(connection, job_class="é" * 127 + "e", queue="é" * 127 + "e")


def test_one_live_job_for_each_class_and_key(engine: Engine) -> None:
    with engine.begin() as connection:
        _insert(connection, job_class="X", key_digest=b"k")
        _insert(connection, job_class="Y", key_digest=b"k")
        _insert(connection, job_class="X", key_digest=b"l")
        _insert(connection, job_class="X")
        _insert(connection, job_class="X")
        with pytest.raises(IntegrityError, match="magik_jobs_key"), connection.begin_nested():
            _insert(connection, job_class="X", key_digest=b"k")
        for end in ("expired_at", "finished_at"):
            connection.execute(text(f"UPDATE magik_jobs SET {end} = now() WHERE {end} IS NULL AND job_class = 'X'"))
            _insert(connection, job_class="X", key_digest=b"k")


def test_only_one_version_can_be_recorded(engine: Engine) -> None:
    for row in ("(true, 2)", "(false, 2)"):
        with engine.begin() as connection, pytest.raises(DBAPIError, match=r"magik_schema_(pkey|only_row_check)"):
            connection.execute(text(f"INSERT INTO magik_schema (only_row, version) VALUES {row}"))


def test_storage(engine: Engine) -> None:
    statement = text("SELECT relname, relpersistence::text, reloptions FROM pg_class WHERE relname LIKE 'magik%'")
    with engine.begin() as connection:
        found = {name: (kind, options) for name, kind, options in connection.execute(statement)}
    assert found["magik_claims"] == ("u", ["fillfactor=70"])
    assert found["magik_workers"][0] == "u"
    assert found["magik_jobs"][0] == "p"
    assert {"fillfactor=90", "autovacuum_vacuum_scale_factor=0", "autovacuum_vacuum_cost_delay=0"} <= {
        *found["magik_jobs"][1]
    }


def _insert(connection: Connection, **row: Any) -> None:
    names, values = ", ".join(row), ", ".join(f":{name}" for name in row)
    connection.execute(text(f"INSERT INTO magik_jobs ({names}) VALUES ({values})"), row)
