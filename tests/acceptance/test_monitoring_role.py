"""A role that may look at little: what it does not see is unknown, and never a zero; then it is given what it lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tests.jobs.lasting import Lasting
from tests.tools.cluster import Cluster
from tests.tools.effects import Effects
from tests.tools.program import answer, magik
from tests.tools.roles import printed
from tests.tools.schema import migrate
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

LASTING = "tests.jobs.lasting"


def grants() -> list[str]:
    """The statements that docs/grants.md prints for an observer; the tables lie in the schema `public` here."""
    said = [each.replace("magik.", "").replace("SCHEMA magik", "SCHEMA public") for each in printed("## The observer")]
    return ["CREATE ROLE monitoring LOGIN", *(each.replace("shop_observer", "monitoring") for each in said)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Role `app` owns the tables and runs the workers; `monitoring` and `stranger` come from outside."""
    with Cluster() as cluster:
        cluster.execute("CREATE ROLE app LOGIN; CREATE ROLE stranger LOGIN; GRANT CREATE ON SCHEMA public TO app")
        migrate(cluster.url(user="app"))
        Effects(cluster.url(user="app"))
        engine = create_engine(cluster.url(user="app"))
        with Session(engine) as session, session.begin():
            session.add_all([Lasting(seconds=60), Lasting(delay="1h")])
        engine.dispose()
        yield cluster


def test_what_another_role_does_not_see_is_unknown_and_never_zero(cluster: Cluster) -> None:
    *tables, see_all = grants()
    cluster.execute(";".join(tables))
    url, app = cluster.url(user="monitoring"), cluster.url(user="app")
    with (
        WorkerProcess(app, LASTING, concurrency=1) as busy,
        WorkerProcess(app, LASTING, queue=["mail"]) as idle,
        WorkerProcess(app, LASTING, queue=["mail"]) as beside,
        closing(psycopg.connect(cluster.dsn(user="app"), application_name="reporting")) as other,
    ):
        for worker in (busy, idle, beside):
            worker.wait_ready()
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT count(*) FROM magik_jobs")
        status = until(lambda: flagged(answer(url, "jobs", "status")))
        default, mail = status["queues"]
        assert (default["ready"], default["running"], default["scheduled"]) == (0, 1, 1), "locks are seen by all"
        assert [each["alive"] for each in status["workers"]].count(None) == 1, "two have proved it by a lock"
        assert (default["workers"], mail["workers"]) == (1, 1)
        assert (default["at_least"], mail["at_least"]) == ([], ["workers", "ended_last_minute"])
        assert "GRANT pg_read_all_stats" in magik(url, "jobs", "status")
        found = {each["name"]: each for each in answer(url, "doctor")["findings"]}
        oldest = found["oldest_transaction"]
        assert (oldest["severity"], oldest["measured"]["seconds"]) == ("unknown", None)
        assert (oldest["measured"]["pid"], oldest["measured"]["application"]) == (other.info.backend_pid, "reporting")
        assert oldest["remedy"].endswith("GRANT pg_read_all_stats TO monitoring.")
        assert found["connections"]["measured"]["lockers"] == 3
        assert found["locks"]["measured"]["advisory"] >= 2
        cluster.execute(see_all)
        status = answer(url, "jobs", "status")
        assert {each["alive"] for each in status["workers"]} == {True}
        assert all(not each["at_least"] for each in status["queues"])
        found = {each["name"]: each for each in answer(url, "doctor")["findings"]}
        assert found["oldest_transaction"]["severity"] == "ok"
    assert "you don't own a lock" not in cluster.read_log()


def flagged(status: dict[str, Any]) -> dict[str, Any] | None:
    """Once the busy worker runs its job, and an idle one waits for mail."""
    waits = [queue for worker in status["workers"] for queue in worker["waits_for"]]
    return status if "mail" in waits and sum(worker["running"] for worker in status["workers"]) == 1 else None


def test_a_role_without_any_privilege_learns_what_it_lacks(cluster: Cluster) -> None:
    url = cluster.url(user="stranger")
    status = answer(url, "jobs", "status")
    assert [status[name] for name in ("queues", "workers", "schedules", "unserved")] == [None] * 4
    assert "permission denied for table magik_workers" in status["unknown"]["workers"]
    shown = magik(url, "jobs", "status")
    assert "Queues: unknown" in shown
    assert not re.search(r"\b0\b", shown)
    cluster.execute("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
    for command in (["jobs", "status"], ["doctor"]):
        said = magik(url, *command, code=2, env={"MAGIK_SCHEMA": "public"})
        assert said.startswith("MAGIK_TABLES_UNREADABLE: schema public: ")
        assert "GRANT" in said.upper()
