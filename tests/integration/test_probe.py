"""What threads are worth: measured, and told where a query of one holds up the others."""

from __future__ import annotations

from magik_sa.doctor import Severity
from magik_sa.doctor.probe import computing, probe
from tests.tools.examined import run

ONE_BY_ONE = """
CREATE FUNCTION slow.pg_sleep(seconds double precision) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
  PERFORM pg_advisory_xact_lock(1);
  PERFORM pg_catalog.pg_sleep(seconds);
END $$"""


def test_queries_of_several_threads_overlap(dsn: str) -> None:
    queries, python = probe(dsn, 4)
    assert (queries.severity, python.severity) == (Severity.OK, Severity.OK)
    assert 1 <= queries.measured["seconds"] < 2 < queries.measured["one_after_the_other"]
    assert python.measured["threads"] == 4


def test_queries_that_wait_for_one_another_are_told_of(dsn: str) -> None:
    run(dsn, "CREATE SCHEMA slow", ONE_BY_ONE)
    queries, _ = probe(f"{dsn}?options=-csearch_path%3Dslow,pg_catalog", 3)
    assert queries.severity is Severity.WARNING
    assert queries.measured["seconds"] >= 3
    assert "did not overlap" in queries.said


def test_more_connections_than_there_is_room_for_leave_it_unknown(database: str, dsn: str) -> None:
    run(dsn, f'ALTER DATABASE "{database.rpartition("/")[2]}" CONNECTION LIMIT 2')
    queries, _ = probe(dsn, 4)
    assert queries.severity is Severity.UNKNOWN
    assert "too many connections" in queries.said


def test_threads_that_compute_share_what_the_interpreter_gives_them() -> None:
    found = computing(2).measured
    assert found["seconds"] > 0
    assert found["cores"] < (1.2 if found["gil"] else 2.2), "one lock, one core, whatever the number of threads"
