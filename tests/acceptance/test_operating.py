"""``magik queues``, ``schedules``, ``workers`` and ``jobs status --watch`` as programs, beside workers."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Engine, make_url
from sqlalchemy.orm import Session

from magik_sa import recurring
from tests.jobs.lasting import Lasting
from tests.tools.effects import Effects
from tests.tools.program import PROGRAM, answer, hear_sigint, magik
from tests.tools.proxy import Proxy
from tests.tools.server import Server
from tests.tools.waiting import until
from tests.tools.workers import ROOT, WorkerProcess, environment

LASTING, TICKING = "tests.jobs.lasting", "tests.jobs.ticking"


# ---- queues


def test_a_queue_is_listed_paused_and_resumed(database: str, app: psycopg.Connection[Any]) -> None:
    app.execute("INSERT INTO magik_jobs (job_class, queue) VALUES ('Any', 'mail')")
    assert (
        magik(database, "queues", "pause", "mail", "--by", "ada") == "The queue mail is paused: no job of it begins.\n"
    )
    assert magik(database, "queues", "pause", "mail") == "The queue mail was paused already.\n"
    (queue,) = answer(database, "queues")["queues"]
    _, line, why = magik(database, "queues").splitlines()
    assert re.match(r"mail \(paused\) +1 ", line)
    assert why == f"mail: paused by ada since {queue['paused_at']}. It goes on with: magik queues resume mail"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", queue["paused_at"])
    assert (queue["name"], queue["paused"], queue["paused_by"], queue["ready"]) == ("mail", True, "ada", 1)
    listed = answer(database, "queues", "list")
    assert (listed["queues"][0].keys(), listed["unknown"]) == (queue.keys(), {})
    assert answer(database, "queues", "resume", "mail") == {"queue": "mail", "paused": False, "changed": True}
    assert answer(database, "queues", "resume", "mail") == {"queue": "mail", "paused": False, "changed": False}


def test_who_paused_is_the_user_of_the_machine_if_nobody_says(database: str, app: psycopg.Connection[Any]) -> None:
    magik(database, "queues", "pause", "new", "--create", env={"LOGNAME": "eve"})
    assert app.execute("SELECT name, paused_by FROM magik_queues").fetchall() == [("new", "eve")]


def test_a_queue_that_nothing_knows_is_refused(database: str, app: psycopg.Connection[Any]) -> None:
    app.execute("INSERT INTO magik_jobs (job_class, queue) VALUES ('Any', 'payments')")
    line = magik(database, "queues", "pause", "paiments", code=2)
    assert line.startswith("MAGIK_QUEUE_UNKNOWN: ")
    assert "did you mean 'payments'?" in line
    (error,) = answer(database, "queues", "resume", "x", code=2)["errors"]
    assert error["code"] == "MAGIK_QUEUE_UNKNOWN"
    assert "--create" not in str(error)
    assert app.execute("SELECT FROM magik_queues").rowcount == 0


def test_what_the_server_refuses_is_said_on_one_line(database: str, app: psycopg.Connection[Any]) -> None:
    app.execute("ALTER TABLE magik_queues RENAME TO elsewhere")
    assert magik(database, "queues", "pause", "mail", "--create", code=2).startswith("MAGIK_SCHEMA_MISSING: ")


def test_a_table_that_is_locked_is_not_waited_for_without_end(database: str, dsn: str) -> None:
    with psycopg.connect(dsn) as other:
        other.execute("LOCK magik_queues")
        assert magik(database, "queues", "pause", "mail", "--create", code=2).startswith("MAGIK_TABLES_LOCKED: ")


# ---- schedules


def test_a_schedule_is_listed_paused_resumed_and_run_once(database: str, app: psycopg.Connection[Any]) -> None:
    assert "No schedules" in magik(database, "schedules")
    ticks = "SELECT count(*) FROM magik_job_schedules WHERE name = %s AND last_run_at IS NOT NULL"
    with WorkerProcess(database, TICKING, env={"TICKING": "1"}, queue=["nobody's"]) as worker:
        worker.wait_ready()
        name = "Ticking:n0"
        listed = {each["name"]: each for each in answer(database, "schedules")["schedules"]}
        assert (listed[name]["job_class"], listed[name]["paused"]) == ("Ticking", False)
        assert name in magik(database, "schedules", "list")
        assert "is paused" in magik(database, "schedules", "pause", name, "--by", "ada")
        line = magik(database, "schedules", "run", name, code=2)
        assert line.startswith(f"MAGIK_SCHEDULE_PAUSED: The schedule '{name}' is paused.")
        assert f": magik schedules resume {name} (" in line
        assert "is resumed" in magik(database, "schedules", "resume", name)
        assert app.execute(ticks, (name,)).fetchone() == (0,)
        assert answer(database, "schedules", "run", name) == {"schedule": name, "due": True, "changed": True}
        until(lambda: app.execute(ticks, (name,)).fetchone() == (1,), what="a worker has fired it")
        jobs = "SELECT count(*) FROM magik_jobs"
        assert app.execute(jobs).fetchone() == (1,)
        line = magik(database, "schedules", "run", f"{name}x", code=2)
        assert line.startswith("MAGIK_SCHEDULE_UNKNOWN: ")
        assert name in line


def test_two_that_run_it_at_once_make_one_job(engine: Engine, app: psycopg.Connection[Any]) -> None:
    app.execute("""INSERT INTO magik_job_schedules (name, job_class, declaration, next_run_at)
                   VALUES ('Nightly', 'Nightly', '{"every": "1d"}', now() + interval '1 h')""")
    with engine.connect() as one, engine.connect() as two:
        assert recurring.run_now(one, "Nightly")
        one.commit()
        assert not recurring.run_now(two, "Nightly"), "it is due already"
    assert app.execute("SELECT next_run_at <= now() FROM magik_job_schedules").fetchone() == (True,)


def test_without_a_worker_nothing_is_made_due(database: str, app: psycopg.Connection[Any]) -> None:
    app.execute("""INSERT INTO magik_job_schedules (name, job_class, declaration, next_run_at)
                   VALUES ('Nightly', 'Nightly', '{"every": "1d"}', now() + interval '1 h')""")
    assert magik(database, "schedules", "run", "Nightly", code=2).startswith("MAGIK_NO_WORKER: ")
    assert "did you mean 'Nightly'?" in magik(database, "schedules", "run", "Nihgtly", code=2)
    assert app.execute("SELECT next_run_at > now() FROM magik_job_schedules").fetchone() == (True,)


# ---- workers


def test_workers_are_listed_with_what_they_have_in_hand(database: str, engine: Engine, effects: Effects) -> None:
    assert magik(database, "workers") == "No worker is alive.\n"
    with WorkerProcess(database, LASTING, queue=["default", "mail"], concurrency=2) as worker:
        worker.wait_ready()
        with Session(engine, expire_on_commit=False) as session, session.begin():
            session.add(job := Lasting(seconds=60))
        until(effects.count, what="it runs")
        (one,) = until(lambda: [w for w in answer(database, "workers")["workers"] if settled(w)], what="it waits, too")
        lines = magik(database, "workers").splitlines()
        assert re.fullmatch(rf".+:{worker.pid}", one["name"])
        assert (one["alive"], one["running"], one["queues"]) == (True, 1, ["default", "mail"])
        assert sorted(one["waits_for"]) == ["default", "mail"]
        (in_hand,) = one["jobs"]
        assert (in_hand["id"], in_hand["job_class"], in_hand["queue"]) == (str(job.id), "Lasting", "default")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", in_hand["since"])
        assert one["since"] <= in_hand["since"]
        assert lines[0].split()[:5] == ["worker", "session", "state", "since", "running"]
        assert any(re.fullmatch(rf"{job.id} +Lasting +default +\S+Z +\S+:{worker.pid}", line) for line in lines)
        worker.kill()
        until(lambda: answer(database, "workers")["workers"] == [], what="its session is gone")


def settled(worker: dict[str, Any]) -> bool:
    """Whether it has noted that its job has begun, and waits for another in both of its queues."""
    return worker["jobs"][0]["begun"] and len(worker["waits_for"]) == 2


# ---- watching


@contextmanager
def watched(database: str, *words: str, stdout: int = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*PROGRAM, "jobs", "status", *words],
        env=environment(database, None, {"TERM": "xterm"}),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        preexec_fn=hear_sigint,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_in_a_pipe_there_is_a_document_for_each_round_and_sigint_is_an_orderly_end(
    database: str, app: psycopg.Connection[Any]
) -> None:
    with watched(database, "--watch", "0.2", "--json") as process:
        assert process.stdout
        assert json.loads(process.stdout.readline())["queues"] == []
        app.execute("INSERT INTO magik_jobs (job_class) VALUES ('Any')")
        until(lambda: json.loads(process.stdout.readline())["queues"], what="a later round sees it")  # type: ignore[union-attr]
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 0


def test_a_database_that_is_lost_is_said_and_asked_again(database: str, server: Server) -> None:
    url = make_url(database)
    with Proxy(url.host or "127.0.0.1", url.port or 5432) as proxy:
        proxied = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        with watched(proxied, "--watch", "0.2") as process:
            out = process.stdout
            assert out

            def line(start: bytes) -> bool:
                return out.readline().startswith(start)

            until(lambda: line(b"No jobs"), what="the first round")
            proxy.refuse()
            proxy.cut()
            until(lambda: line(b"MAGIK_DATABASE_UNREACHABLE"), what="the line of the lost one")
            proxy.accept()
            until(lambda: line(b"No jobs"), what="it is back")
            process.send_signal(signal.SIGINT)
            assert process.wait(5) == 0


def test_what_cannot_be_asked_at_all_is_not_watched(empty_database: str) -> None:
    assert magik(empty_database, "jobs", "status", "--watch", code=2).startswith("MAGIK_SCHEMA_MISSING: ")
    assert magik(empty_database, "jobs", "status", "--watch", "0", code=2).startswith("MAGIK_SETTING_INVALID: ")


def test_who_reads_may_stop_reading(database: str) -> None:
    with watched(database, "--watch", "0.1") as process:
        assert process.stdout
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(5) == 0
        assert process.stderr
        assert process.stderr.read() == b""


def test_on_a_terminal_it_is_drawn_in_its_place(database: str, app: psycopg.Connection[Any]) -> None:
    app.execute("INSERT INTO magik_jobs (job_class, queue) VALUES ('Any', 'mail')")
    ours, theirs = pty.openpty()
    with watched(database, "--watch", "0.2", stdout=theirs) as process:
        os.close(theirs)
        shown = b""
        while shown.count(b"mail") < 4:  # three a round
            shown += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 0
    os.close(ours)
    assert b"\x1b[1A" in shown, "the cursor goes back up"
    assert b"\x1b[?25h" in shown or b"\x1b[?25l" in shown
