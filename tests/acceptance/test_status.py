"""``magik jobs status`` as a program: beside workers, on a terminal and in a pipe, whatever stands in the tables."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from contextlib import closing
from typing import Any

import psycopg
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from tests.jobs.lasting import Lasting
from tests.tools.effects import Effects
from tests.tools.program import PROGRAM, answer, magik
from tests.tools.waiting import until
from tests.tools.workers import ROOT, WorkerProcess, environment

LASTING = "tests.jobs.lasting"
EVIL = "\x1b[2J\r\u202e[bold]x"


def run(dsn: str, statement: str, *values: object) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode(), values or None)


def test_the_figures_beside_a_worker_at_work(database: str, dsn: str, engine: Engine, effects: Effects) -> None:
    with Session(engine) as session, session.begin():
        session.add_all([Lasting(seconds=60) for _ in range(5)])
        session.add_all([Lasting(delay="1h"), Lasting(queue="reports")])
    run(dsn, "INSERT INTO magik_jobs (job_class, queue) VALUES ('NotKnownHere', 'default')")
    with WorkerProcess(database, LASTING, concurrency=2) as worker:
        until(lambda: effects.count() == 2, 20)
        found = answer(database, "jobs", "status")
        lines = magik(database, "jobs", "status").splitlines()
    assert found["unknown"] == {}
    default, reports = found["queues"]
    assert set(default) == {
        *("name", "ready", "running", "scheduled", "errored", "expired", "oldest_queued_seconds"),
        *("ended_last_minute", "workers", "paused", "paused_by", "paused_at", "at_least"),
    }
    counts = ("name", "ready", "running", "scheduled", "workers", "at_least")
    assert [default[name] for name in counts] == ["default", 4, 2, 1, 1, []]
    assert [reports[name] for name in counts] == ["reports", 1, 0, 0, 0, []]
    (one,) = found["workers"]
    assert re.fullmatch(rf".+:{worker.pid}", one["name"])
    assert (one["alive"], one["running"], one["queues"]) == (True, 2, ["default"])
    (unserved,) = found["unserved"]
    assert (unserved["job_class"], unserved["queue"], unserved["why"]) == ("Lasting", "reports", "no_worker")
    assert lines[0].split() == [
        *("queue", "ready", "running", "scheduled", "errored", "expired", "oldest", "ended/min", "workers")
    ]
    assert re.fullmatch(r"default +4 +2 +1 +0 +0 +[\d.,]+ s +0 +1", lines[1])
    assert re.fullmatch(r"reports +1 +0 +0 +0 +0 +[\d.,]+ s +- +0", lines[2])
    assert any(re.fullmatch(rf"\S+:{worker.pid} +\d+ +alive +2 +default", line) for line in lines)
    assert any(re.fullmatch(r"Lasting +reports +1 +[\d.,]+ s +no live worker works this queue", line) for line in lines)
    assert "Start a worker with --queue reports that imports the modules of these classes." in lines


def test_what_a_worker_has_ended_is_told_and_once_it_was_killed_it_and_that_are_gone(
    database: str, engine: Engine, effects: Effects
) -> None:
    with WorkerProcess(database, LASTING) as worker:
        worker.wait_ready()
        with Session(engine) as session, session.begin():
            session.add_all([Lasting(), Lasting(delay="1h")])
        (queue,) = until(lambda: ended(database, 1), what="it says what has ended")
        assert (queue["scheduled"], queue["workers"]) == (1, 1)
        assert re.search(r"^default +0 +0 +1 +0 +0 +- +1 +1$", magik(database, "jobs", "status"), re.MULTILINE)
        worker.kill()
        until(lambda: answer(database, "jobs", "status")["workers"] == [], what="its session is gone")
    assert ended(database, None)
    assert re.search(r"^default +0 +0 +1 +0 +0 +- +- +0$", magik(database, "jobs", "status"), re.MULTILINE)


def ended(database: str, jobs: int | None) -> Any:
    """The queues of which so many jobs have ended in the last minute."""
    return [each for each in answer(database, "jobs", "status")["queues"] if each["ended_last_minute"] == jobs]


def test_a_class_that_the_waiting_worker_does_not_know_is_named(database: str, dsn: str) -> None:
    run(dsn, "INSERT INTO magik_jobs (job_class, run_at) VALUES ('NotKnownHere', now() - interval '1 min')")
    with WorkerProcess(database, LASTING) as worker:
        worker.wait_ready()
        (one,) = until(lambda: answer(database, "jobs", "status")["unserved"])
    assert (one["job_class"], one["why"]) == ("NotKnownHere", "passed_over")


def test_names_from_the_database_command_no_terminal(database: str, dsn: str) -> None:
    run(dsn, "INSERT INTO magik_jobs (job_class, queue) VALUES (%s, %s)", EVIL, EVIL)
    run(dsn, "INSERT INTO magik_queues (name, paused_by) VALUES ('q', %s)", EVIL)
    run(dsn, "INSERT INTO magik_job_schedules VALUES (%s, %s, '{}', now(), NULL, now(), %s)", EVIL, EVIL, EVIL)
    shown = r"\x1b[2J\r\u202e[bold]x"
    piped = magik(database, "jobs", "status")
    assert piped.isascii()
    assert not [each for each in piped if not each.isprintable() and each != "\n"]
    assert piped.count(shown) == 8
    assert shown in on_terminal(database, "jobs", "status").replace("\r\n", "")
    assert answer(database, "jobs", "status")["schedules"][0]["name"] == EVIL


def test_colours_and_a_width_are_for_terminals(database: str, dsn: str) -> None:
    run(dsn, "INSERT INTO magik_jobs (job_class, queue) VALUES ('Any', %s)", "q" * 200)
    assert "\x1b[" not in magik(database, "jobs", "status")
    assert "q" * 200 in magik(database, "jobs", "status")
    shown = on_terminal(database, "jobs", "status")
    assert "\x1b[1m" in shown
    drawn = [re.sub(r"\x1b\[\d*m", "", line) for line in shown.splitlines()]
    pasted = [line for line in drawn if "--queue " in line]  # words of a command are left whole
    assert ["q" * 200 in line for line in pasted] == [True]
    assert max(len(line) for line in drawn if line not in pasted) <= 100


def on_terminal(database: str, *words: str) -> str:
    """What a terminal of 100 columns is sent."""
    ours, theirs = pty.openpty()
    env = environment(database, None, {"COLUMNS": "100", "TERM": "xterm", "LANG": "C.UTF-8"})
    with closing(os.fdopen(ours, "rb", buffering=0)) as screen:
        process = subprocess.Popen([*PROGRAM, *words], env=env, cwd=ROOT, stdout=theirs, stdin=theirs)
        os.close(theirs)
        shown = b""
        try:
            while part := screen.read(65536):
                shown += part
        except OSError:  # the other side of a terminal ends with an error
            pass
        assert process.wait(30) == 0
    return shown.decode()


def test_a_name_that_the_encoding_lacks_does_not_end_the_program(database: str, dsn: str) -> None:
    run(dsn, "INSERT INTO magik_jobs (job_class, queue) VALUES ('Any', '🦄 für')")
    words = magik(database, "jobs", "status", env={"PYTHONIOENCODING": "latin-1"}, encoding="latin-1")
    assert r"\U0001f984 für" in words


def test_a_command_for_jobs_that_there_is_not(database: str) -> None:
    assert magik(database, "jobs", "stat", code=2).startswith("MAGIK_SETTING_INVALID: No such command 'stat'")
    assert "status" in magik(database, "jobs")
