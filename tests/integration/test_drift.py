"""Every part of the tables that is missing is named, with the statement that puts it back."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import Connection, Engine

from magik_sa.asking import Asking
from magik_sa.doctor import Finding, Severity, Subject
from magik_sa.doctor.tables import schema_drift, schema_version
from magik_sa.migrations import v001
from magik_sa.migrations.drift import parts
from tests.tools.dump import dump

COLUMNS = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
CONSTRAINTS = """
SELECT conrelid::regclass::text, conname FROM pg_constraint JOIN pg_class c ON c.oid = conrelid
 WHERE c.relnamespace = 'public'::regnamespace AND contype IN ('p', 'c')"""
INDEXES = """
SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE c.relnamespace = 'public'::regnamespace AND NOT indisprimary"""


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        yield connection


def drift(connection: Connection) -> Finding:
    return schema_drift(Subject(Asking(connection), ""))


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as other:
        for statement in statements:
            other.execute(statement.encode())


def test_the_parts_that_are_read_from_the_migration_are_all_that_it_makes(dsn: str) -> None:
    with psycopg.connect(dsn) as other:
        columns, constraints, indexes = (
            set(other.execute(query).fetchall()) for query in (COLUMNS, CONSTRAINTS, INDEXES)
        )
    found = parts(v001)
    assert {(part.of, part.name) for part in found if part.kind == "column"} == columns
    assert {(part.of, part.name) for part in found if part.kind == "constraint"} == constraints
    assert {(part.name,) for part in found if part.kind == "index"} == indexes
    for kind, names in v001.PARTS.items():
        assert {part.name for part in found if part.kind == kind} == set(names)


def test_nothing_is_missing_after_a_migration(connection: Connection) -> None:
    found = drift(connection)
    assert (found.severity, found.measured, found.sql) == (Severity.OK, {"lacking": []}, ())


ENDED = "FUNCTION magik_jobs_ended(its_id uuid, its_version integer, keep boolean)"


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ("ALTER TABLE magik_jobs DROP COLUMN context", "column magik_jobs.context (missing)"),
        ("ALTER TABLE magik_jobs DROP COLUMN version", "column magik_jobs.version (missing)"),
        ("ALTER TABLE magik_jobs DROP CONSTRAINT magik_jobs_args_check", "constraint magik_jobs_args_check (missing)"),
        ("ALTER TABLE magik_claims DROP CONSTRAINT magik_claims_pkey", "constraint magik_claims_pkey (missing)"),
        ("DROP INDEX magik_jobs_claim", "index magik_jobs_claim (missing)"),
        ("DROP INDEX magik_jobs_key", "index magik_jobs_key (missing)"),
        ("DROP TRIGGER magik_jobs_added ON magik_jobs", "trigger magik_jobs_added (missing)"),
        ("ALTER TABLE magik_jobs DISABLE TRIGGER magik_jobs_changed", "trigger magik_jobs_changed (disabled)"),
        ("DROP TABLE magik_queues", "table magik_queues (missing), trigger magik_queues_changed (missing)"),
        ("ALTER TABLE magik_queues DISABLE TRIGGER magik_queues_changed", "trigger magik_queues_changed (disabled)"),
        ("DROP TABLE magik_workers, magik_effects", "table magik_workers (missing), table magik_effects (missing)"),
        (
            "CREATE OR REPLACE FUNCTION magik_jobs_added() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'",
            "function magik_jobs_added (changed)",
        ),
        ("DROP FUNCTION magik_jobs_ended", "function magik_jobs_ended (missing)"),
        (
            f"CREATE OR REPLACE {ENDED} RETURNS void LANGUAGE plpgsql AS 'BEGIN END'",
            "function magik_jobs_ended (changed)",
        ),
        (
            "DROP FUNCTION magik_jobs_added CASCADE",
            "function magik_jobs_added (missing), trigger magik_jobs_added (missing)",
        ),
    ],
)
def test_what_is_missing_is_named_and_mended_by_what_is_printed(
    connection: Connection, database: str, dsn: str, broken: str, named: str
) -> None:
    whole = described(database)
    run(dsn, broken)
    found = drift(connection)
    assert (found.severity, found.said) == (Severity.CRITICAL, named)
    run(dsn, *found.sql)
    assert drift(connection).severity is Severity.OK
    assert described(database) == whole


def described(database: str) -> list[str]:
    """All of it, but for the order of columns, which a column that was put back does not have."""
    return sorted(line.strip().rstrip(",") for line in dump(database, "--no-owner").splitlines())


def test_an_index_that_failed_half_way_is_named(connection: Connection, dsn: str) -> None:
    run(dsn, "DROP INDEX magik_jobs_key")
    run(dsn, *["INSERT INTO magik_jobs (job_class, key_digest) VALUES ('Any', 'same')"] * 2)
    key = re.sub("UNIQUE INDEX", "UNIQUE INDEX CONCURRENTLY", v001.KEY.format(schema=""))
    with pytest.raises(psycopg.errors.UniqueViolation):
        run(dsn, key)
    found = drift(connection)
    assert found.said == "index magik_jobs_key (not valid)"
    run(dsn, "DELETE FROM magik_jobs", *found.sql)
    assert drift(connection).severity is Severity.OK


@pytest.mark.parametrize(
    ("installed", "code", "remedy"),
    [(0, "MAGIK_SCHEMA_BEHIND", "`magik migrate`"), (2, "MAGIK_SCHEMA_AHEAD", "Install the release")],
)
def test_tables_of_another_version_are_named_and_not_compared(
    connection: Connection, dsn: str, installed: int, code: str, remedy: str
) -> None:
    run(dsn, "ALTER TABLE magik_schema DROP CONSTRAINT magik_schema_version_check")
    run(dsn, f"UPDATE magik_schema SET version = {installed}")
    found = schema_version(Subject(Asking(connection), ""))
    assert found.severity is Severity.CRITICAL
    assert code in found.cause
    assert remedy in found.remedy
    with pytest.raises(Exception, match="are compared once they are of version 1"):
        drift(connection)
