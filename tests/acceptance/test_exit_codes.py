"""Each way to end has its own exit code, none but an orderly end has 0, and the reason is one line on stderr."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.orm import Session as OrmSession

from tests.jobs.lasting import Lasting
from tests.jobs.neighbours import ClosesDescriptors
from tests.tools.effects import Effects
from tests.tools.proxy import Proxy
from tests.tools.sessions import terminate
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

LASTING = "tests.jobs.lasting"
DRAINED, REFUSED, DEADLINE, LOST = 0, 2, 3, 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_while_idle_is_0(database: str, number: signal.Signals) -> None:
    with WorkerProcess(database, LASTING, fresh=True) as worker:
        worker.wait_ready()
        worker.signal(number)
        assert worker.wait() == DRAINED


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_the_code_is_right_where_stderr_takes_nothing(database: str, engine: Engine, where: str) -> None:
    """Closed, or on a full disk: what the worker says is lost, and nothing else."""
    for module, code in [(LASTING, DRAINED), ("nowhere", REFUSED)]:
        line = ["sh", "-c", f"exec {sys.executable} -m magik_sa.worker {module} --app-name quiet {where}"]
        with WorkerProcess(database, command=line, app_name="quiet") as worker:
            if code == DRAINED:
                until(lambda: registered(engine), 20, what="the worker works")
                worker.signal(signal.SIGTERM)
            assert worker.wait() == code


def registered(engine: Engine) -> Any:
    with engine.connect() as connection:
        return connection.scalar(text("SELECT count(*) FROM magik_workers"))


def test_the_deadline_is_3(database: str, engine: Engine, effects: Effects) -> None:
    run_for_long(engine)
    with WorkerProcess(database, LASTING, shutdown_timeout="200ms") as worker:
        until(effects.count, 20, what="the job runs")
        assert worker.terminate() == DEADLINE


def test_a_second_signal_is_3(database: str, engine: Engine, effects: Effects) -> None:
    run_for_long(engine)
    with WorkerProcess(database, LASTING, shutdown_timeout="1h") as worker:
        until(effects.count, 20, what="the job runs")
        worker.signal(signal.SIGINT)
        worker.wait_log("event=draining")
        assert worker.returncode is None
        assert worker.terminate() == DEADLINE


def run_for_long(engine: Engine) -> None:
    with OrmSession(engine) as session, session.begin():
        session.add(Lasting(seconds=60))


def test_a_job_that_closes_what_the_worker_needs_ends_it_with_4(database: str, engine: Engine) -> None:
    with OrmSession(engine) as session, session.begin():
        session.add(ClosesDescriptors())
    with WorkerProcess(database, "tests.jobs.neighbours", concurrency=1) as worker:
        assert worker.wait() == LOST


@pytest.mark.parametrize("busy", [False, True])
def test_a_database_that_is_lost_beyond_the_bound_is_4(
    database: str, dsn: str, engine: Engine, effects: Effects, busy: bool
) -> None:
    if busy:
        run_for_long(engine)
    url = make_url(database)
    with Proxy(url.host or "", url.port or 0) as proxy:
        proxied = url.set(port=proxy.port).render_as_string(hide_password=False)
        with WorkerProcess(proxied, LASTING, database_timeout="1s") as worker:
            worker.wait_ready()
            until(lambda: effects.count() == busy, what="the job runs")
            proxy.refuse()
            terminate(dsn, f"{worker.app_name}%")
            assert worker.wait(10) == LOST
            assert last_line(worker).startswith("MAGIK_DATABASE_LOST: ")


def test_a_part_that_ends_by_itself_is_4(database: str, engine: Engine, effects: Effects) -> None:
    """No job can do it, so a fault of the worker's own is put in."""
    run_for_long(engine)
    with WorkerProcess(database, LASTING, program=["-m", "tests.controls.a_thread_dies"]) as worker:
        assert worker.wait(20) == LOST
        assert last_line(worker).startswith("MAGIK_THREAD_DIED: magik-performer-")


def last_line(worker: WorkerProcess) -> str:
    return worker.stderr().splitlines()[-1]


def elsewhere(url: str, changes: dict[str, Any]) -> str:
    return make_url(url).set(**changes).render_as_string(hide_password=False)


@pytest.mark.parametrize(
    ("changes", "options", "module", "said"),
    [
        pytest.param({"port": 1}, {}, LASTING, "MAGIK_DATABASE_UNREACHABLE", id="nobody listens"),
        pytest.param({"database": "no_such_database"}, {}, LASTING, "MAGIK_DATABASE_UNREACHABLE", id="no database"),
        pytest.param({}, {}, "broken_module", "MAGIK_MODULE_IMPORT_FAILED", id="import error"),
        pytest.param({}, {}, "job_without_policy", "MAGIK_POLICY_UNDECLARED", id="no policy"),
        pytest.param({}, {"such_option": "1"}, LASTING, "MAGIK_SETTING_INVALID", id="no such option"),
        pytest.param({}, {"concurrency": "400"}, LASTING, "MAGIK_CONNECTION_BUDGET", id="more than the server gives"),
    ],
)
def test_what_keeps_the_worker_from_starting_is_2(
    database: str, tmp_path: Path, changes: dict[str, Any], options: dict[str, str], module: str, said: str
) -> None:
    (tmp_path / "broken_module.py").write_text("import no_such_thing_at_all\n")
    (tmp_path / "job_without_policy.py").write_text(
        "from magik_sa import Job\n\n\nclass Unheld(Job):\n    def perform(self, session): ...\n"
    )
    with WorkerProcess(database, module, path=tmp_path, env=at(elsewhere(database, changes)), **options) as worker:  # type: ignore[arg-type]
        expect_refusal(worker, said)


def test_a_database_without_the_tables_is_2(empty_database: str) -> None:
    with WorkerProcess(empty_database, LASTING) as worker:
        expect_refusal(worker, "MAGIK_SCHEMA_MISSING")


def test_no_database_at_all_is_2(database: str) -> None:
    with WorkerProcess(database, LASTING, env=at("")) as worker:
        expect_refusal(worker, "MAGIK_DATABASE_URL_MISSING")


def at(url: str) -> dict[str, str]:
    """The environment of a worker that is pointed there; the test itself still finds its database."""
    return {"MAGIK_DATABASE_URL": url}


def expect_refusal(worker: WorkerProcess, said: str) -> None:
    assert worker.wait() == REFUSED
    assert worker.stdout() == ""
    (line,) = worker.stderr().splitlines()
    assert line.startswith(f"{said}: ")
    assert "password" not in line.replace("user:password@host", "")
