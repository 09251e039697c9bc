"""A stop signal ends the worker in time, at every moment of its life, and what it leaves behind runs elsewhere."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, make_url
from sqlalchemy.orm import Session as OrmSession

from magik_sa import Job
from tests.jobs.lasting import Lasting
from tests.jobs.ledger import GatedPosting, Posting, open_books
from tests.tools.effects import Effects
from tests.tools.proxy import Proxy
from tests.tools.server import Server
from tests.tools.sessions import ONE_KEY, advisory_locks
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

DRAINED, DEADLINE = 0, 3


@pytest.fixture
def app(dsn: str, engine: Engine) -> Iterator[psycopg.Connection[Any]]:
    open_books(engine)
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def add(engine: Engine) -> Callable[..., None]:
    """Adds jobs in a transaction of their own."""

    def add(*jobs: Job) -> None:
        with OrmSession(engine) as session, session.begin():
            session.add_all(jobs)

    return add


def count(app: psycopg.Connection[Any], table: str) -> int:
    return int((app.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() or [0])[0])


def stops(app: psycopg.Connection[Any]) -> bool:
    """Whether the worker says in its row that it drains: from then on nothing is begun."""
    return app.execute("SELECT draining FROM magik_workers").fetchall() == [(True,)]


def ended_within(seconds: float, worker: WorkerProcess) -> int:
    """SIGTERM; the exit code of a worker that has ended in this time."""
    began = time.monotonic()
    code = worker.terminate()
    assert time.monotonic() - began < seconds
    return code


def test_jobs_that_outlast_the_shutdown_timeout_run_again_elsewhere(
    app: psycopg.Connection[Any], database: str, dsn: str, add: Callable[..., None], effects: Effects
) -> None:
    """Out within the timeout plus one second, with a code that is not 0; nothing half-done, and no failed try."""
    with WorkerProcess(database, "tests.jobs.ledger", concurrency=4, shutdown_timeout="1s") as a:
        a.wait_ready()
        jobs = [*(Posting(seconds=60) for _ in range(3)), Posting(stays=1.5)]  # which ends after the timeout, if it may
        add(*jobs)
        until(lambda: effects.count() == 4, what="four jobs run")
        assert ended_within(2, a) == DEADLINE
        assert all(str(job.id) in a.stderr() for job in jobs)
    until(lambda: advisory_locks(dsn)[ONE_KEY] == 0, what="the locks are free")
    assert (count(app, "entries"), count(app, "magik_claims")) == (0, 0)
    app.execute("""UPDATE magik_jobs SET args = args || '{"seconds": 0, "stays": 0}', version = version + 1""")
    with WorkerProcess(database, "tests.jobs.ledger", concurrency=4) as b:
        b.wait_ready()
        until(lambda: effects.count() == 8, what="all four are started again")
        until(lambda: count(app, "magik_jobs") == 0, what="all four are done")
    assert {row.note for row in effects.rows()} == {"attempt 1"}
    assert count(app, "entries") == 4


def test_jobs_that_end_within_the_shutdown_timeout_end_well(
    app: psycopg.Connection[Any], database: str, dsn: str, add: Callable[..., None], effects: Effects
) -> None:
    """Nothing new is claimed meanwhile."""
    add(*(GatedPosting() for _ in range(6)))
    with WorkerProcess(database, "tests.jobs.ledger", concurrency=2, shutdown_timeout="1h") as worker:
        until(lambda: effects.count() == 2, 20, what="two jobs run")
        worker.signal(signal.SIGTERM)
        until(lambda: stops(app), what="it claims nothing more, and has given back what had not begun")
        app.execute("INSERT INTO gates VALUES ('open')")
        code = worker.wait()
    assert (effects.count(), effects.finished(), count(app, "entries"), count(app, "magik_jobs")) == (2, 2, 2, 4)
    assert code == DRAINED
    assert (count(app, "magik_claims"), count(app, "magik_workers")) == (0, 0)


# ---- while it boots

SLOW = """
import sys, time
for tenth in range(21):
    print(f"tenth {tenth}.", file=sys.stdout, flush=True)
    time.sleep(0.1)
from tests.jobs.lasting import Lasting
"""


def handles_sigterm(worker: WorkerProcess) -> bool:
    """Whether the process has taken the signal over, by the kernel's own account."""
    caught = Path(f"/proc/{worker.pid}/status").read_text().split("SigCgt:")[1].split()[0]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def test_a_signal_while_the_worker_boots_is_not_lost(
    app: psycopg.Connection[Any], database: str, add: Callable[..., None], tmp_path: Path, effects: Effects
) -> None:
    """At the first moment, three times during a slow import, and right after it; the database lets none get further."""
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    add(Lasting())
    said = [None, "tenth 0.", "tenth 10.", "tenth 19.", "tenth 20."]
    with silent(database) as (url, _), ExitStack() as stack:
        env = {"MAGIK_DATABASE_URL": url}
        boots = [WorkerProcess(database, "slow_to_import", path=tmp_path, env=env, fresh=True) for _ in said]
        workers = [stack.enter_context(boot) for boot in boots]
        with ThreadPoolExecutor(len(said)) as threads:
            codes = list(threads.map(stop_when, workers, said))
        assert codes == [0] * 5, [worker.stderr() for worker in workers]
        assert all("Traceback" not in worker.stderr() for worker in workers)
    assert (effects.count(), count(app, "magik_jobs"), count(app, "magik_claims")) == (0, 1, 0)


@contextmanager
def silent(database: str) -> Iterator[tuple[str, Proxy]]:
    """The way to a database that takes connections and never answers."""
    url = make_url(database)
    with Proxy(url.host or "", url.port or 5432) as proxy:
        proxy.silence(new=True)
        yield url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False), proxy


def stop_when(worker: WorkerProcess, said: str | None) -> int:
    """Stop it when it has said so; None: as soon as it can be stopped."""
    until(lambda: handles_sigterm(worker), 20, every=0.001, what="the signal is taken over")
    until(lambda: said is None or said in worker.stdout(), 20, every=0.005, what=f"{said}")
    return worker.terminate()


def test_what_the_application_turns_off_is_turned_on_again_before_anything_is_waited_for(
    database: str, tmp_path: Path
) -> None:
    off = "import signal\nfor n in (signal.SIGTERM, signal.SIGINT):\n    signal.signal(n, signal.SIG_IGN)\n"
    (tmp_path / "deaf.py").write_text(f"{off}from tests.jobs.lasting import Lasting\n")
    with (
        silent(database) as (url, proxy),
        WorkerProcess(database, "deaf", path=tmp_path, env={"MAGIK_DATABASE_URL": url}) as worker,
    ):
        until(lambda: proxy.open, 20, what="it waits for the database")
        assert worker.terminate() == DRAINED


# ---- when it is ready


@pytest.mark.slow
def test_every_start_and_stop_is_an_orderly_one(
    app: psycopg.Connection[Any], database: str, add: Callable[..., None], server: Server, effects: Effects
) -> None:
    """Idle, half-busy and busy; 0 each time, no traceback, and nothing in the server's log."""
    before = len(server.cluster.read_log()) if server.cluster else 0
    for busy in (0, 1, 2):
        add(*(Lasting(seconds=0.5) for _ in range(4 * busy)))
        with ThreadPoolExecutor(4) as threads:
            logs = list(threads.map(lambda _: start_and_stop(database), range(4)))
        assert not any("Traceback" in log or "Fatal" in log or "locker_died" in log for log in logs)
        assert all("event=drained" in log for log in logs)
        app.execute("DELETE FROM magik_jobs")
    assert effects.count() == effects.finished()
    assert (count(app, "magik_claims"), count(app, "magik_workers")) == (0, 0)
    if server.cluster:
        assert "unexpected EOF" not in server.cluster.read_log()[before:]


def start_and_stop(database: str) -> str:
    with WorkerProcess(database, "tests.jobs.lasting", concurrency=2) as worker:
        worker.wait_ready()
        assert worker.terminate() == DRAINED
    return worker.stderr()
