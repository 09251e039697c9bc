"""What keeps the tables from being cleaned, though no session is to be seen: made, named, mended, and gone."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import pq

from magik_sa.doctor import Finding, Severity
from tests.tools.cluster import Cluster
from tests.tools.examined import finding, run
from tests.tools.schema import migrate
from tests.tools.waiting import until

INSTANT = timedelta(milliseconds=1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server that allows what is off by default."""
    allowed: dict[str, str | int] = {"max_prepared_transactions": 5, "autovacuum_naptime": "1s", "wal_level": "logical"}
    with Cluster(None, allowed) as cluster:
        migrate(cluster.url())
        yield cluster


def test_a_prepared_transaction_is_named_until_it_is_taken_back(cluster: Cluster) -> None:
    name = "prepared_transactions"
    assert finding(cluster.url(), name).measured == {"prepared": []}
    run(cluster.dsn(), "BEGIN; INSERT INTO magik_jobs (job_class) VALUES ('Any'); PREPARE TRANSACTION 'o''clock'")
    young = finding(cluster.url(), name)
    assert (young.severity, young.measured["prepared"][0]["gid"]) == (Severity.OK, "o'clock")
    found = finding(cluster.url(), name, oldest_transaction=timedelta(seconds=1))
    until(lambda: finding(cluster.url(), name, oldest_transaction=timedelta(seconds=1)).severity is Severity.WARNING)
    found = finding(cluster.url(), name, oldest_transaction=INSTANT)
    assert (found.severity, "o'clock of the role postgres" in found.said) == (Severity.CRITICAL, True)
    run(cluster.dsn(), *found.sql)
    assert finding(cluster.url(), name, oldest_transaction=INSTANT).severity is Severity.OK


def test_an_autovacuum_that_comes_in_vain_is_no_excuse_for_dead_tuples(cluster: Cluster) -> None:
    rows = "INSERT INTO magik_jobs (job_class) SELECT 'Any' FROM generate_series(1, 12000)"
    run(cluster.dsn(), "SET magik_sa.wake = off", rows, "BEGIN; CREATE TABLE other (); PREPARE TRANSACTION 'forgotten'")
    run(cluster.dsn(), "DELETE FROM magik_jobs")
    until(lambda: in_vain(cluster), 20, what="autovacuum has come and cleaned nothing")
    run(cluster.dsn(), "ROLLBACK PREPARED 'forgotten'")
    until(lambda: finding(cluster.url(), "dead_tuples").severity is Severity.OK, 20, what="autovacuum has cleaned")


def in_vain(cluster: Cluster) -> bool:
    """Whether it is a warning, though autovacuum has come within its last two rounds."""
    found = finding(cluster.url(), "dead_tuples")
    came = found.measured["last_autovacuum_seconds"]
    return found.severity is Severity.WARNING and came is not None and came < 2


def test_a_slot_that_nobody_uses_is_named_until_it_is_dropped(cluster: Cluster) -> None:
    name = "replication_slots"
    run(cluster.dsn(), "SELECT pg_create_physical_replication_slot('gone', true)")
    assert finding(cluster.url(), name, slots=1).severity is Severity.OK, "it holds nothing back yet"
    reading = int(value(cluster.dsn(), "SELECT txid_current()"))
    with standby(cluster) as line:
        line.put_copy_data(struct.pack("!cqIIII", b"h", 0, reading, 0, 0, 0))  # "somebody here reads what is older"
        line.flush()
        until(lambda: value(cluster.dsn(), "SELECT xmin FROM pg_replication_slots") is not None)
    until(lambda: value(cluster.dsn(), "SELECT active FROM pg_replication_slots") is False)
    run(cluster.dsn(), *["SELECT txid_current()"] * 3)
    assert finding(cluster.url(), name).severity is Severity.OK
    found = finding(cluster.url(), name, slots=3)
    assert (found.severity, found.measured["slots"][0]["name"]) == (Severity.WARNING, "gone")
    assert re.search(r"physical gone \(not in use\) holds vacuum back by \d+ transactions", found.said)
    assert finding(cluster.url(), name, slots=0).severity is Severity.CRITICAL
    run(cluster.dsn(), *found.sql)
    assert finding(cluster.url(), name, slots=3).measured == {"slots": []}


def test_a_slot_of_a_subscriber_holds_back_the_catalogs_alone_and_is_named_until_it_is_dropped(
    cluster: Cluster,
) -> None:
    name = "replication_slots"
    run(cluster.dsn(), "SELECT pg_create_logical_replication_slot('subscriber', 'pgoutput')")
    run(cluster.dsn(), "INSERT INTO magik_jobs (job_class) VALUES ('Any')", "DELETE FROM magik_jobs")
    run(cluster.dsn(), "CREATE TABLE short ()", "DROP TABLE short", "SELECT txid_current()")
    until(lambda: left(cluster, "magik_jobs") == 0, what="the job table is cleaned")
    assert left(cluster, "pg_class") > 0
    assert finding(cluster.url(), name).severity is Severity.OK
    found = finding(cluster.url(), name, slots=3)
    (slot,) = found.measured["slots"]
    assert (found.severity, slot["kind"], slot["tables"]) == (Severity.WARNING, "logical", 0)
    said = f"logical subscriber (not in use) holds vacuum of the catalogs back by {slot['catalogs']} transactions"
    assert found.said == said
    assert "The tables of the queue are cleaned" in found.cause
    run(cluster.dsn(), *["SELECT txid_current()"] * 8)
    assert finding(cluster.url(), name, slots=1).severity is Severity.WARNING, "it is nothing to the queue"
    run(cluster.dsn(), *found.sql)
    assert finding(cluster.url(), name, slots=1).measured == {"slots": []}
    until(lambda: left(cluster, "pg_class") == 0, what="the catalogs are cleaned as well")


def left(cluster: Cluster, table: str) -> int:
    """How many dead rows a VACUUM had to leave."""
    said = list[str]()
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
        connection.execute(f"VACUUM (VERBOSE) {table}".encode())
    return sum(int(found) for found in re.findall(r"(\d+) are dead but not yet removable", " ".join(said)))


@contextmanager
def standby(cluster: Cluster) -> Iterator[Any]:
    """A standby's connection, as far as its slot can tell."""
    line = pq.PGconn.connect(f"{cluster.dsn()} replication=true".encode())
    try:
        place = line.exec_(b"IDENTIFY_SYSTEM").get_value(0, 2) or b""
        begun = line.exec_(b"START_REPLICATION SLOT gone PHYSICAL " + place)
        assert begun.status == pq.ExecStatus.COPY_BOTH, begun.error_message
        yield line
    finally:
        line.finish()


def value(dsn: str, statement: str) -> Any:
    """The only value of a query."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()[0][0]


# ---- autovacuum -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "severity"),
    [
        ("SET (autovacuum_enabled = off)", Severity.WARNING),
        ("SET (autovacuum_vacuum_threshold = 500000)", Severity.NOTE),
        ("RESET (autovacuum_vacuum_scale_factor)", Severity.NOTE),
    ],
)
def test_tables_that_are_not_cleaned_as_they_were_made_to_be_are_named(
    database: str, dsn: str, change: str, severity: Severity
) -> None:
    assert finding(database, "autovacuum").severity is Severity.OK
    run(dsn, f"ALTER TABLE magik_jobs {change}")
    found = finding(database, "autovacuum")
    assert found.severity is severity
    run(dsn, *found.sql)
    assert finding(database, "autovacuum").severity is Severity.OK


def test_an_autovacuum_that_is_off_for_the_whole_server_is_critical_until_it_is_on(cluster: Cluster) -> None:
    run(cluster.dsn(), "ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()")
    found = until(lambda: off(cluster))
    assert found.measured["running"] is False
    run(cluster.dsn(), *found.sql)
    until(lambda: not off(cluster), what="the settings are read again")


def off(cluster: Cluster) -> Finding | None:
    found = finding(cluster.url(), "autovacuum")
    return found if found.severity is Severity.CRITICAL else None


def test_when_the_job_table_was_last_cleaned_is_told(database: str, dsn: str) -> None:
    assert finding(database, "autovacuum").measured["last_cleaned_seconds"] is None
    run(dsn, "VACUUM magik_jobs")
    assert until(lambda: finding(database, "autovacuum").measured["last_cleaned_seconds"] is not None)
