"""What all sessions of a server share: filled up or worn by somebody, named, mended, and gone."""

from __future__ import annotations

from contextlib import ExitStack, closing

import psycopg

from magik_sa.doctor import Severity
from tests.tools.cluster import Cluster
from tests.tools.examined import finding, run, warned
from tests.tools.schema import migrate
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess


def test_a_listener_that_stays_in_a_transaction_is_named_until_it_ends() -> None:
    name = "notifications"
    with Cluster() as cluster, ExitStack() as stack:
        migrate(cluster.url())
        worker = stack.enter_context(WorkerProcess(cluster.url(), "tests.jobs.lasting"))
        worker.wait_ready()
        assert finding(cluster.url(), name).measured == {"used": 0, "workers": 1}
        hanging = stack.enter_context(closing(psycopg.connect(cluster.dsn(), application_name="hanging")))
        hanging.execute("LISTEN anything")
        hanging.commit()
        hanging.execute("SELECT 1")
        run(cluster.dsn(), "SELECT pg_notify('anything', n || repeat('x', 7000)) FROM generate_series(1, 200) n")
        assert finding(cluster.url(), name).severity is Severity.OK, "that is next to nothing of the queue"
        found = until(lambda: warned(cluster.url(), name, notifications=1e-9))
        assert f"oldest transactions: {hanging.info.backend_pid} (hanging, " in found.said
        run(cluster.dsn(), *found.sql)
        until(lambda: freed(cluster), what="the queue moves on")
        assert worker.terminate() == 0


def freed(cluster: Cluster) -> bool:
    """What nobody has to read is let go by the next notifications."""
    run(cluster.dsn(), "SELECT pg_notify('anything', n || repeat('x', 7000)) FROM generate_series(1, 10) n")
    return not warned(cluster.url(), "notifications", notifications=1e-4)


AGE = """
DO $$ BEGIN
  PERFORM FROM shared FOR KEY SHARE;
  FOR i IN 1..3000 LOOP
    BEGIN UPDATE shared SET n = n + 1 WHERE id = i; EXCEPTION WHEN division_by_zero THEN NULL; END;
  END LOOP;
END $$"""


def test_ids_of_shared_row_locks_that_grow_old_are_named_until_the_tables_are_cleaned() -> None:
    with Cluster(None, {"autovacuum": "off"}) as cluster:
        migrate(cluster.url())
        rows = "CREATE TABLE shared AS SELECT id, 0 AS n FROM generate_series(1, 3000) id"
        run(cluster.dsn(), rows, "ALTER TABLE shared ADD PRIMARY KEY (id)", AGE)
        share = 2_000 / finding(cluster.url(), "multixact").measured["freeze_max_age"]
        found = warned(cluster.url(), "multixact", multixacts=share)
        assert found
        assert found.measured["age"] >= 3_000
        assert finding(cluster.url(), "multixact").severity is Severity.OK
        run(cluster.dsn(), *found.sql)
        assert finding(cluster.url(), "multixact", multixacts=share).severity is Severity.OK
