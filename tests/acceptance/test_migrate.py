"""``magik migrate``: installed, upgraded and removed by a program, by several at once, and by a role with little."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import NullPool, create_engine, make_url

from magik_sa.locked import ALONE
from magik_sa.migrations import installed_version
from tests.tools import program
from tests.tools.asking import told
from tests.tools.dump import apply, dump
from tests.tools.effects import Effects
from tests.tools.installed import install
from tests.tools.program import hear_sigint
from tests.tools.server import Server
from tests.tools.sessions import pids
from tests.tools.waiting import until
from tests.tools.workers import ROOT, WorkerProcess, dsn_of, environment

NOTHING: Mapping[str, str] = MappingProxyType({})
PROGRAM = (sys.executable, "-W", "error", "-m", "magik_sa.cli")


class Run:
    """``magik …`` with the database in its environment; ends with `code` and has printed `out` and `err`."""

    def __init__(self, database: str, *arguments: str, env: Mapping[str, str] = NOTHING) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments],
            env=environment(database, None, env),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=hear_sigint,
        )

    def end(self, code: int = 0) -> tuple[str, str]:
        """What went to stdout and to stderr, once it ended as expected."""
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == code, (self.process.returncode, out, err)
        return out.strip(), err.strip()


def magik(database: str, *arguments: str, code: int = 0, env: Mapping[str, str] = NOTHING) -> tuple[str, str]:
    ended, out, err = program.run(database, *arguments, env=env)
    assert ended == code, (ended, out, err)
    return out.strip(), err.strip()


def version(url: str) -> int:
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return installed_version(connection)


def execute(url: str, statement: str) -> None:
    with psycopg.connect(dsn_of(url), autocommit=True) as connection:
        connection.execute(statement.encode())


def worker(database: str, env: Mapping[str, str] = NOTHING) -> WorkerProcess:
    """A worker that `magik` starts."""
    return WorkerProcess(database, "tests.jobs.shop", program=("-m", "magik_sa.cli", "worker"), env=env)


# ---- up, again, and down -------------------------------------------------------------------------------------------


def test_the_second_time_there_is_nothing_to_do(empty_database: str) -> None:
    assert magik(empty_database, "migrate") == ("The tables in the search_path went from version 0 to 1.", "")
    made = dump(empty_database)
    assert magik(empty_database, "migrate") == ("Nothing to do: the tables in the search_path are of version 1.", "")
    assert dump(empty_database) == made


def test_what_it_makes_is_what_a_chain_makes(empty_database: str, database: str) -> None:
    magik(empty_database, "migrate")
    assert dump(empty_database, "--no-owner") == dump(database, "--no-owner")


def test_down_only_when_it_is_said_twice(database: str) -> None:
    made = dump(database)
    out, err = magik(database, "migrate", "--version", "0", code=2)
    assert out == ""
    assert err.startswith("MAGIK_DOWNGRADE_UNCONFIRMED: Version 1 is installed; going down to 0 removes the tables")
    assert dump(database) == made
    said, _ = magik(database, "migrate", "--version", "0", "--yes")
    assert said == "The tables in the search_path went from version 1 to 0."
    assert version(database) == 0
    magik(database, "migrate")
    assert dump(database) == made


def test_as_json(empty_database: str) -> None:
    out, _ = magik(empty_database, "migrate", "--json")
    assert json.loads(out) == {"from": 0, "to": 1, "changed": True}
    out, _ = magik(empty_database, "migrate", "--json")
    assert json.loads(out) == {"from": 1, "to": 1, "changed": False}
    out, err = magik(empty_database, "migrate", "--version", "0", "--json", code=2)
    (fault,) = json.loads(out)["errors"]
    assert fault["code"] == "MAGIK_DOWNGRADE_UNCONFIRMED"
    assert fault["docs"] == "docs/errors.md#magik_downgrade_unconfirmed"
    assert err.startswith("MAGIK_DOWNGRADE_UNCONFIRMED: ")


@pytest.mark.parametrize("schema", [None, 'My "jobs": {schema} 100%s'])
def test_the_script_makes_what_the_program_makes(empty_database: str, schema: str | None) -> None:
    env = {"MAGIK_SCHEMA": schema} if schema else NOTHING
    if schema:
        execute(empty_database, 'CREATE SCHEMA "My ""jobs"": {schema} 100%s"')
    nothing = dump(empty_database)
    magik(empty_database, "migrate", env=env)
    online = dump(empty_database)
    apply(empty_database, magik("", "migrate", "--sql", "--since", "1", "--version", "0", env=env)[0])
    assert dump(empty_database) == nothing
    apply(empty_database, magik("", "migrate", "--sql", env=env)[0])
    assert dump(empty_database) == online
    assert json.loads(magik("", "migrate", "--sql", "--json", env=env)[0])["sql"].startswith("BEGIN;")


def test_the_named_database_wins_over_the_environment(empty_database: str) -> None:
    magik("postgresql://nobody@localhost:1/none", "migrate", "--database-url", empty_database)
    assert version(empty_database) == 1


# ---- refused --------------------------------------------------------------------------------------------------------


def refused(code: str, database: str, *arguments: str, env: Mapping[str, str] = NOTHING) -> str:
    """The one line on stderr."""
    out, err = magik(database, "migrate", *arguments, code=2, env=env)
    assert out == ""
    assert err.startswith(f"{code}: ")
    assert "\n" not in err
    return err


def test_without_a_database_it_says_what_is_missing() -> None:
    refused("MAGIK_DATABASE_URL_MISSING", "")


@pytest.mark.parametrize("url", ["mysql://u@h/d", "nonsense", "postgresql://u@h/d?colour=red"])
def test_a_url_that_leads_nowhere(url: str) -> None:
    refused("MAGIK_DATABASE_URL_INVALID", url)


def test_a_server_that_is_not_there() -> None:
    line = refused("MAGIK_DATABASE_UNREACHABLE", "postgresql://nobody:hidden@localhost:1/none")
    assert "hidden" not in line


@pytest.mark.parametrize("wanted", ["2", "-1"])
def test_a_version_that_there_is_not(empty_database: str, wanted: str) -> None:
    for more in ([], ["--sql"]):
        assert f"There is no version {wanted}." in refused(
            "MAGIK_SCHEMA_AHEAD", empty_database, f"--version={wanted}", *more
        )


def test_options_that_there_are_not(empty_database: str) -> None:
    assert "--bogus" in refused("MAGIK_SETTING_INVALID", empty_database, "--bogus")
    assert "'x'" in refused("MAGIK_SETTING_INVALID", empty_database, "--version=x")
    assert "concurrency" in refused("MAGIK_SETTING_INVALID", empty_database, env={"MAGIK_CONCURRENCY": "many"})


def test_half_made_tables_are_named_and_left_as_they_are(database: str) -> None:
    execute(database, "DROP TABLE magik_queues")
    half = dump(database)
    for arguments in ([], ["--version=0", "--yes"]):
        line = refused("MAGIK_SCHEMA_INCOMPLETE", database, *arguments)
        assert "missing: table magik_queues, trigger magik_queues_changed." in line
    assert dump(database) == half


def test_something_else_in_the_place_of_a_constraint(empty_database: str) -> None:
    execute(empty_database, "CREATE TABLE magik_claims_pkey ()")
    before = dump(empty_database)
    line = refused("MAGIK_MIGRATION_REFUSED", empty_database)
    assert 'relation "magik_claims_pkey" already exists' in line
    assert dump(empty_database) == before


def test_a_schema_that_there_is_not(empty_database: str) -> None:
    line = refused("MAGIK_MIGRATION_REFUSED", empty_database, env={"MAGIK_SCHEMA": "nowhere"})
    assert 'schema "nowhere" does not exist' in line
    assert "Make schema nowhere, owned by the role that migrates" in line


# ---- several at once, and locks ------------------------------------------------------------------------------------


def test_of_several_at_once_one_does_it_and_the_others_find_it_done(empty_database: str) -> None:
    runs = [Run(empty_database, "migrate", "--json") for _ in range(3)]
    answers = [json.loads(run.end()[0]) for run in runs]
    assert sorted(answer["changed"] for answer in answers) == [False, False, True]
    assert version(empty_database) == 1


def test_who_waits_for_another_says_so(empty_database: str) -> None:
    with psycopg.connect(dsn_of(empty_database)) as other:
        other.execute(ALONE.encode())
        run = Run(empty_database, "migrate")
        waiting = "%pg_advisory_xact_lock%"
        until(lambda: pids(dsn_of(empty_database), "magik_sa migrate", query=waiting), what="it waits")
    out, err = run.end()
    assert err == "magik_sa: another migration is under way here; waiting for it."
    assert out.endswith("from version 0 to 1.")


@pytest.mark.parametrize("held", ["migration", "LOCK TABLE magik_schema", "SELECT FROM magik_jobs"])
def test_a_lock_that_is_not_free_ends_it_within_the_bound(database: str, held: str) -> None:
    with psycopg.connect(dsn_of(database), application_name="somebody's report") as other:
        other.execute(ALONE.encode() if held == "migration" else held.encode())
        began = time.monotonic()
        _, err = magik(database, "migrate", "--version=0", "--yes", code=2)
        assert 4.5 < time.monotonic() - began < 30
        line = err.splitlines()[-1]
        assert line.startswith("MAGIK_TABLES_LOCKED: ")
        assert f"{other.info.backend_pid} (somebody's report)" in line
    assert version(database) == 1


def test_a_shorter_bound_of_the_role_holds(database: str) -> None:
    with psycopg.connect(dsn_of(database)) as other:
        other.execute("SELECT FROM magik_jobs")
        began = time.monotonic()
        line = refused(
            "MAGIK_TABLES_LOCKED", database, "--version=0", "--yes", env={"PGOPTIONS": "-c lock_timeout=50ms"}
        )
        assert time.monotonic() - began < 4.5
        assert f"process id: {other.info.backend_pid}" in line


# ---- a role that owns one schema -----------------------------------------------------------------------------------

STANDS = """
SELECT nspname, count(*) FROM (
    SELECT relnamespace AS place FROM pg_class UNION ALL SELECT pronamespace FROM pg_proc) things
  JOIN pg_namespace ON pg_namespace.oid = place
 WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' GROUP BY 1"""


@pytest.fixture
def tenant(server: Server, empty_database: str) -> Iterator[str]:
    """The URL of a role that owns the schema `jobs`, in which it finds itself, and may do nothing else."""
    if not server.superuser:
        pytest.skip("making roles needs a superuser")
    name, role = str(make_url(empty_database).database), f"tenant_{secrets.token_hex(4)}"
    who = sql.Identifier(role)
    server.execute(sql.SQL("CREATE ROLE {} LOGIN NOSUPERUSER PASSWORD 'secret'").format(who))
    server.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC", name)
    server.execute("CREATE SCHEMA hidden", name)
    server.execute(sql.SQL("CREATE SCHEMA jobs AUTHORIZATION {}").format(who), name)
    server.execute(sql.SQL("ALTER ROLE {} SET search_path = jobs").format(who))
    yield make_url(empty_database).set(username=role, password="secret").render_as_string(hide_password=False)
    server.execute(sql.SQL("DROP OWNED BY {}").format(who), name)
    server.execute(sql.SQL("DROP ROLE {}").format(who), name)


@pytest.mark.parametrize("schema", [None, "jobs"])
def test_a_role_that_owns_one_schema_can_do_all_of_it(tenant: str, schema: str | None) -> None:
    env = {"MAGIK_SCHEMA": schema} if schema else NOTHING
    for arguments in ([], ["--version=0", "--yes"], []):
        magik(tenant, "migrate", *arguments, env=env)
    effects = Effects(tenant)
    with worker(tenant, env) as process:
        process.wait_ready()
        told([sys.executable, "-c", ENQUEUE], env=environment(tenant, None, env))
        until(lambda: effects.count() == 1, what="the job runs")
        assert process.terminate() == 0
    with psycopg.connect(dsn_of(tenant)) as connection:
        assert {name for name, _ in connection.execute(STANDS)} == {"jobs"}
    magik(tenant, "migrate", "--version=0", "--yes", env=env)


ENQUEUE = """
import os
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from tests.jobs.shop import Packing

with Session(create_engine(os.environ["MAGIK_DATABASE_URL"])) as session, session.begin():
    session.add(Packing(number=7))
"""


def test_a_role_that_may_not_make_tables_is_told_what_it_needs(tenant: str, server: Server) -> None:
    line = refused("MAGIK_MIGRATION_REFUSED", tenant, env={"MAGIK_SCHEMA": "hidden"})
    assert "permission denied for schema hidden" in line
    assert "owned by the role that migrates" in line
    server.execute(sql.SQL("ALTER ROLE {} RESET search_path").format(sql.Identifier(str(make_url(tenant).username))))
    assert "MAGIK_SCHEMA" in refused("MAGIK_MIGRATION_REFUSED", tenant)


# ---- the worker beside it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["LOCK TABLE magik_schema", "LOCK TABLE magik_jobs"])
def test_workers_that_start_while_the_tables_are_locked_say_so_and_give_up(database: str, held: str) -> None:
    """A hung migration; the workers do not hang behind it."""
    with psycopg.connect(dsn_of(database), application_name="hung") as other:
        other.execute(held.encode())
        began = time.monotonic()
        with worker(database) as a, worker(database) as b:
            for each in (a, b):
                assert each.wait() == 2
                (line,) = each.stderr().splitlines()
                assert line.startswith("MAGIK_TABLES_LOCKED: ")
                assert f"{other.info.backend_pid} (hung)" in line
        assert time.monotonic() - began < 30
    with worker(database) as c:
        c.wait_ready()
        assert c.terminate() == 0


def test_workers_start_while_another_only_means_to_migrate(database: str) -> None:
    """What keeps migrations apart is nothing to a worker."""
    with psycopg.connect(dsn_of(database)) as other:
        other.execute(ALONE.encode())
        with worker(database) as a, worker(database) as b:
            for each in (a, b):
                each.wait_ready()


def test_a_worker_does_not_start_on_half_of_the_tables(database: str) -> None:
    execute(database, "DROP TABLE magik_jobs")
    with worker(database) as a:
        assert a.wait() == 2
        assert re.match('MAGIK_SCHEMA_INCOMPLETE: .*"magik_jobs" does not exist', a.stderr())


def test_a_worker_never_migrates_and_says_what_would(empty_database: str) -> None:
    before = dump(empty_database)
    with worker(empty_database) as a:
        assert a.wait() == 2
        assert "MAGIK_SCHEMA_MISSING" in a.stderr()
        assert "`magik migrate`" in a.stderr()
    assert dump(empty_database) == before


# ---- the program itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_work_while_the_jobs_are_still_imported(database: str, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "slow.py").write_text("import pathlib, time\npathlib.Path('up').touch()\ntime.sleep(60)\n")
    command = [*PROGRAM, "worker", "slow"]
    started = subprocess.Popen(
        command, cwd=tmp_path, env=environment(database, tmp_path, NOTHING), stderr=subprocess.PIPE, text=True
    )
    until((tmp_path / "up").exists, what="the import has begun")
    started.send_signal(number)
    _, err = started.communicate(timeout=10)
    assert started.returncode == 0
    assert f"{number.name} before the worker was ready" in err


ORDER = """
import sys
from magik_sa.cli import main
from magik_sa.worker.signals import Signals

def install(self):
    print(sorted({"click", "sqlalchemy", "psycopg", "pydantic", "alembic", "rich"} & {*sys.modules}))
    sys.exit(0)

Signals.install = install
sys.argv = ["magik", "worker"]
main()
"""


def test_the_signals_come_before_everything_slow() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORDER], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_installed_program(database: str, tmp_path: Path) -> None:
    env = {**os.environ, **install(tmp_path), "MAGIK_DATABASE_URL": database}

    def run(*words: str) -> str:
        done = subprocess.run(["magik", *words], env=env, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    assert "Nothing to do" in run("migrate")
    assert "migrate" in run() == run("--help")
    assert run("--version").startswith("magik_sa, version ")
    assert "--sql" in run("migrate", "-h")


def test_a_command_that_there_is_not(database: str) -> None:
    _, err = magik(database, "migrat", code=2)
    assert err.startswith("MAGIK_SETTING_INVALID: No such command 'migrat'")


def test_ctrl_c_ends_it_without_a_traceback(database: str) -> None:
    with psycopg.connect(dsn_of(database)) as other:
        other.execute(ALONE.encode())
        run = Run(database, "migrate")
        until(lambda: pids(dsn_of(database), "magik_sa migrate", query="%pg_advisory_xact_lock%"), what="it waits")
        run.process.send_signal(signal.SIGINT)
        _, err = run.end(130)
    assert "Traceback" not in err
