"""Where a worker's settings come from, which of them weighs more, and that it says what is in force."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session as OrmSession

from tests.jobs.shop import Packing
from tests.tools.asking import told
from tests.tools.effects import Effects
from tests.tools.sessions import pids
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess, environment

NO_ARGUMENT = [sys.executable, "-m", "magik_sa.worker"]


def pack(engine: Engine, effects: Effects, **options: Any) -> None:
    """Add a job and see it done."""
    with OrmSession(engine) as session, session.begin():
        session.add(job := Packing(number=1, **options))
    until(lambda: effects.starts(job.id), what="the job runs")


def in_force(worker: WorkerProcess) -> dict[str, str]:
    """What the worker says when it is ready."""
    line = worker.wait_log(r"event=ready.*").group()
    return dict(word.split("=", 1) for word in line.split())


def test_without_an_argument_the_environment_says_what_to_run(database: str, engine: Engine, effects: Effects) -> None:
    env = {"MAGIK_MODULES": "tests.jobs.moments, tests.jobs.shop", "MAGIK_QUEUES": "a,b", "MAGIK_CONCURRENCY": "3"}
    with WorkerProcess(database, command=NO_ARGUMENT, env=env) as worker:
        told = in_force(worker.wait_ready())
        pack(engine, effects, queue="b")
        assert worker.terminate() == 0
    assert told["jobs"] == "Packing,Paying,Reminding,Settling"
    assert (told["queues"], told["concurrency"], told["pool"], told["connections"]) == ("a,b", "3", "3", "4")


def test_without_an_argument_pyproject_says_what_to_run(
    database: str, engine: Engine, effects: Effects, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.magik_sa]\nmodules = ["tests.jobs.shop"]\nqueues = ["x", "y"]\nconcurrency = 2\npoll-interval = "3s"\n'
        f'database-url = "{database}"\napp_name = "shop"\n',
        "utf-8",
    )
    (below := tmp_path / "deep" / "down").mkdir(parents=True)
    worker = WorkerProcess(database, command=NO_ARGUMENT, cwd=below, env={"EFFECTS_URL": database})
    del worker.env["MAGIK_DATABASE_URL"]
    with worker:
        told = in_force(worker.wait_ready())
        pack(engine, effects, queue="y")
        with psycopg.connect(effects.dsn) as connection:
            names = connection.execute("SELECT application_name FROM pg_stat_activity WHERE application_name ~ '^shop'")
            assert {name for (name,) in names} == {"shop locker", "shop performer"}
        assert worker.terminate() == 0
    assert (told["queues"], told["concurrency"], told["poll_interval_s"]) == ("x,y", "2", "3.0")


def test_the_command_line_outweighs_the_environment_which_outweighs_pyproject(database: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.magik_sa]\nmodules = "nowhere"\nconcurrency = 2\npoll_interval = "3s"\nshutdown-timeout = "4s"\n',
        "utf-8",
    )
    env = {"MAGIK_CONCURRENCY": "3", "MAGIK_POLL_INTERVAL": "2s", "MAGIK_QUEUES": ""}
    with WorkerProcess(database, "tests.jobs.shop", concurrency=4, cwd=tmp_path, env=env) as worker:
        told = in_force(worker.wait_ready())
    assert (told["concurrency"], told["poll_interval_s"], told["shutdown_timeout_s"]) == ("4", "2.0", "4.0")
    assert told["queues"] == "default"


def test_what_is_in_force_is_said_without_the_password(database: str, dsn: str) -> None:
    url = make_url(database).update_query_dict({"options": "-c statement_timeout=60s"})
    secret = url.password or "no password"
    told_url = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with WorkerProcess(database, "tests.jobs.shop", env={"MAGIK_DATABASE_URL": told_url}, queue=["q"]) as worker:
        told = in_force(worker.wait_ready())
        until(lambda: len(pids(dsn, f"{worker.app_name}%")) <= 11, what="the session of the start's checks is gone")
        assert worker.terminate() == 0
    assert url.database
    assert url.database in told["database"]
    assert (told["schema"], told["queues"], told["concurrency"], told["pool"]) == ("search_path", "q", "10", "10")
    assert told["connections"] == "11"
    assert secret not in worker.stderr() + worker.stdout()


def test_every_line_of_the_log_is_json_where_that_was_asked_for(
    database: str, engine: Engine, effects: Effects
) -> None:
    with WorkerProcess(database, "tests.jobs.shop", log_format="json") as worker:
        worker.wait_ready()
        pack(engine, effects)
        assert worker.terminate() == 0
    lines = [json.loads(line) for line in worker.stderr().splitlines()]
    assert {"ready", "job_finished", "drained"} <= {line["event"] for line in lines}
    assert all({"time", "level", "logger"} <= line.keys() for line in lines)


SCHEMA = """
import os
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from tests.tools.schema import migrate
from tests.jobs.shop import Packing

migrate(os.environ["MAGIK_DATABASE_URL"])
with Session(create_engine(os.environ["MAGIK_DATABASE_URL"])) as session, session.begin():
    session.add(Packing(number=1))
"""


def test_a_configured_schema_is_where_the_worker_looks(empty_database: str) -> None:
    effects, name = Effects(empty_database), 'jobs "of" ours'
    with psycopg.connect(effects.dsn) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    env = {"MAGIK_SCHEMA": name}
    whole = environment(empty_database, None, env)
    told([sys.executable, "-c", SCHEMA], env=whole)
    with WorkerProcess(empty_database, "tests.jobs.shop", env=env) as worker:
        worker.wait_ready()
        until(effects.count, what="the job in the other schema runs")
        worker.wait_log(r'event=ready.* schema="jobs \\"of\\" ours" ')
        assert worker.terminate() == 0
    with create_engine(empty_database).connect() as checked:
        assert checked.exec_driver_sql("SELECT to_regclass('public.magik_jobs')").scalar() is None
    checked.engine.dispose()
