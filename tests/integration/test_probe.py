"""What threads are worth: measured, and told where a query of one holds up the others."""

from __future__ import annotations

import pytest

from magik_sa.doctor import Severity
from magik_sa.doctor.probe import asking, computing, probe
from tests.tools.examined import run

ONE_BY_ONE = """
CREATE FUNCTION slow.pg_sleep(seconds double precision) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
  PERFORM pg_advisory_xact_lock(1);
  PERFORM pg_catalog.pg_sleep(seconds);
END $$"""


# Each is over when all four are under way, and never if that is not to be.
ALL_AT_ONCE = """
CREATE FUNCTION slow.pg_sleep(seconds double precision) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
  PERFORM pg_advisory_lock_shared(4);
  FOR i IN 1..1000 LOOP
    IF (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4 AND mode = 'ShareLock') = 4 THEN
      RETURN;
    END IF;
    PERFORM pg_catalog.pg_sleep(0.02);
  END LOOP;
  RAISE 'alone';
END $$"""


class Times:
    """Of the start and of the end."""

    def __init__(self, took: float) -> None:
        self.monotonic = iter([100.0, 100.0 + took]).__next__
        self.process_time = iter([1.0, 1.0]).__next__


@pytest.mark.parametrize(("took", "severity"), [(1.59, Severity.OK), (1.61, Severity.WARNING)])
def test_queries_of_several_threads_overlap(
    dsn: str, took: float, severity: Severity, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(dsn, "CREATE SCHEMA slow", ALL_AT_ONCE)
    monkeypatch.setattr("magik_sa.doctor.probe.time", Times(took))
    queries = asking(f"{dsn}?options=-csearch_path%3Dslow,pg_catalog", 4)
    assert queries.severity is severity
    assert queries.measured == {"threads": 4, "seconds": took, "one_after_the_other": 4.0}


def test_a_query_is_one_of_a_second(dsn: str) -> None:
    queries, python = probe(dsn, 2)
    assert queries.measured["seconds"] >= 1
    assert python.measured["threads"] == 2


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
