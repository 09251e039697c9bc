"""Four roles with the grants of docs/grants.md: processes that do all of their work, and say what they lack."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg
import pytest

from tests.tools import roles
from tests.tools.asking import told
from tests.tools.cluster import Cluster
from tests.tools.program import answer, magik
from tests.tools.roles import DATABASE, OBSERVER, OWNER, PRODUCER, WORKER, granted, url
from tests.tools.sessions import TWO_KEYS, advisory_locks
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess, environment

GRANTED = "tests.jobs.granted"
SCHEMA = {"MAGIK_SCHEMA": "magik"}
PATH: dict[str, str] = {}
PRODUCE = """
import os
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session
from tests.jobs.granted import Granted

with Session(create_engine(os.environ["MAGIK_DATABASE_URL"])) as session, session.begin():
    session.add_all([Granted(ends=ends) for ends in ("well", "later", "badly", "elsewhere")])
    session.flush()
    session.add(repeat := Granted(ends="well"))
    session.flush()
    assert repeat.is_repeat
    session.add(Granted(ends="never", delay="1h"))
    session.flush()
    session.delete(session.scalars(select(Granted).where(Granted.ends == "never")).one())
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with roles.server() as cluster:
        cluster.execute("CREATE TABLE public.notes (what text)", DATABASE)
        cluster.execute("GRANT INSERT ON public.notes TO shop_worker", DATABASE)
        yield cluster


@pytest.fixture
def dba(cluster: Cluster) -> Iterator[Callable[[str], Any]]:
    """Executes as the superuser. Each test has the tables as the page grants them."""
    roles.renew(cluster)
    with psycopg.connect(cluster.dsn(DATABASE), autocommit=True) as connection:
        connection.execute("SET search_path = magik, public; TRUNCATE notes")
        yield lambda statement: connection.execute(statement.encode()).fetchall()


@pytest.fixture(params=[SCHEMA, PATH], ids=["schema", "search_path"])
def env(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Mapping[str, str]]:
    """The tables are found by the configured schema alone, or by the search_path alone."""
    found = "''" if request.param else "magik, public"
    for role in (OWNER, PRODUCER, WORKER, OBSERVER):
        cluster.execute(f"ALTER ROLE {role} SET search_path = {found}")
    yield request.param
    for role in (OWNER, PRODUCER, WORKER, OBSERVER):
        cluster.execute(f"ALTER ROLE {role} SET search_path = magik, public")


def worker(cluster: Cluster, env: Mapping[str, str], **options: Any) -> WorkerProcess:
    return WorkerProcess(url(cluster, WORKER), GRANTED, env=env, concurrency=4, **options)


def test_the_four_roles_do_all_of_their_work(
    cluster: Cluster, dba: Callable[[str], Any], env: Mapping[str, str]
) -> None:
    """Ends of every kind, ticks, a killed worker's job elsewhere; a producer's repeats and cancels; sight of it all."""
    logged = len(cluster.read_log())
    with worker(cluster, env) as first, worker(cluster, env) as second:
        first.wait_ready()
        second.wait_ready()
        told([sys.executable, "-c", PRODUCE], env=environment(url(cluster, PRODUCER), None, env))
        until(lambda: notes(dba) == {"well", "later", "tick"}, what="ends of every kind")
        begun = "SELECT worker FROM magik_claims JOIN magik_jobs ON id = job_id WHERE begun AND finished_at IS NULL"
        ((name,),) = until(lambda: dba(begun), what="one runs that lasts")
        mine, other = (first, second) if name.endswith(f":{first.pid}") else (second, first)
        mine.kill()
        until(lambda: "elsewhere" in notes(dba), 5, what="it ran elsewhere")
        status = answer(url(cluster, OBSERVER), "jobs", "status", env=env)
        assert status["unknown"] == {}
        assert [each["alive"] for each in status["workers"]] == [True]
        assert [each["expired"] for each in status["queues"]] == [1]
        found = {
            each["name"]: each["severity"] for each in answer(url(cluster, OBSERVER), "doctor", env=env)["findings"]
        }
        assert "unknown" not in found.values()
        assert other.terminate() == 0
    assert "permission denied" not in cluster.read_log()[logged:]


def notes(dba: Callable[[str], Any]) -> set[str]:
    return {what for (what,) in dba("SELECT what FROM notes")}


def test_a_worker_without_any_grant_names_all_of_them_on_one_line(
    cluster: Cluster, dba: Callable[[str], Any], env: Mapping[str, str]
) -> None:
    """What it prints is what has to be pasted."""
    for grant in granted("## The worker"):
        cluster.execute(grant.taken, DATABASE)
    with worker(cluster, env) as refused:
        assert refused.wait() == 2
    (line,) = refused.stderr().splitlines()
    assert line.startswith("MAGIK_GRANT_MISSING: The role shop_worker lacks USAGE on schema magik; ")
    assert line.endswith(" (magik explain MAGIK_GRANT_MISSING)")
    cluster.execute(line.partition(" superuser: ")[2].removesuffix(" (magik explain MAGIK_GRANT_MISSING)"), DATABASE)
    with worker(cluster, env) as mended:
        mended.wait_ready()
        assert mended.terminate() == 0


@pytest.mark.parametrize("command", [("jobs", "status"), ("doctor",)], ids=" ".join)
def test_an_observer_who_may_not_use_the_schema_is_told_so(
    cluster: Cluster, dba: Callable[[str], Any], env: Mapping[str, str], command: tuple[str, ...]
) -> None:
    cluster.execute("REVOKE USAGE ON SCHEMA magik FROM shop_observer", DATABASE)
    said = magik(url(cluster, OBSERVER), *command, code=2, env=env)
    assert said.startswith("MAGIK_TABLES_UNREADABLE: ")
    assert "GRANT USAGE ON SCHEMA magik TO shop_observer;" in said


def test_what_an_observer_may_not_read_is_unknown_with_the_statement_that_mends_it(
    cluster: Cluster, dba: Callable[[str], Any], env: Mapping[str, str]
) -> None:
    """With the exit code of what is known."""
    cluster.execute("REVOKE SELECT ON magik.magik_workers, magik.magik_schema FROM shop_observer", DATABASE)
    mends = "(MAGIK_GRANT_MISSING: GRANT SELECT ON magik.magik_workers TO shop_observer)"
    shown = magik(url(cluster, OBSERVER), "jobs", "status", env=env)
    assert "Workers: unknown" in shown
    assert mends in shown
    found = {each["name"]: each for each in answer(url(cluster, OBSERVER), "doctor", env=env)["findings"]}
    assert found["locks"]["measured"]["workers_may_hold"] is None
    assert found["schema_version"]["severity"] == found["schema_drift"]["severity"] == "unknown"
    assert "GRANT SELECT ON magik.magik_schema TO shop_observer" in found["schema_version"]["said"]


def test_a_migration_by_the_owner_leaves_the_grants_and_new_tables_have_none(
    cluster: Cluster, dba: Callable[[str], Any]
) -> None:
    owner = url(cluster, OWNER)
    magik(owner, "migrate", env=SCHEMA)
    with worker(cluster, SCHEMA) as kept:
        kept.wait_ready()
        assert kept.terminate() == 0
    magik(owner, "migrate", "--version", "0", "--yes", env=SCHEMA)
    magik(owner, "migrate", env=SCHEMA)
    with worker(cluster, SCHEMA) as refused:
        assert refused.wait() == 2
    assert "MAGIK_GRANT_MISSING" in refused.stderr()


def test_an_owner_without_its_schema_is_refused(cluster: Cluster, dba: Callable[[str], Any]) -> None:
    cluster.execute("CREATE SCHEMA other", DATABASE)
    said = magik(url(cluster, OWNER), "migrate", code=2, env={"MAGIK_SCHEMA": "other"})
    assert said.startswith("MAGIK_MIGRATION_REFUSED: ")
    assert "permission denied for schema other" in said
    assert "owned by the role that migrates" in said


def test_a_privilege_taken_away_meanwhile_is_told_and_its_return_noticed(
    cluster: Cluster, dba: Callable[[str], Any]
) -> None:
    with worker(cluster, PATH, poll_interval="200ms") as process:
        process.wait_ready()
        until(lambda: advisory_locks(cluster.dsn(DATABASE), f"{process.app_name} locker")[TWO_KEYS], what="it waits")
        cluster.execute("REVOKE SELECT ON magik.magik_jobs FROM shop_worker", DATABASE)
        process.wait_log("permission denied for table magik_jobs")
        cluster.execute("GRANT SELECT ON magik.magik_jobs TO shop_worker", DATABASE)
        cluster.execute(
            "INSERT INTO magik.magik_jobs (job_class, args) VALUES ('Granted', '{\"ends\": \"well\"}')", DATABASE
        )
        until(lambda: "well" in notes(dba), 15, what="it works again")
        assert process.terminate() == 0
