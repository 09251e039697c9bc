"""``magik jobs list|show|retry|cancel|run-now|discard``: beside workers, on a terminal, whatever is said to them."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from magik_sa.cli import commands
from tests.jobs.acted import Held, Quick
from tests.tools.effects import Effects
from tests.tools.program import PROGRAM, REFUSED, answer, hear_sigint, magik
from tests.tools.sessions import TWO_KEYS, advisory_locks
from tests.tools.waiting import until
from tests.tools.workers import ROOT, WorkerProcess, environment

ACTED = "tests.jobs.acted"
EVIL = "\x1b[2J\r\u202e[bold]x"
PAST = {"cancel": "cancelled", "discard": "discarded"}
AT_ONCE = 20.0  # seconds within which something happens that would else wait for a poll in sixty

Tell = Callable[..., list[Any]]


@pytest.fixture
def tell(dsn: str) -> Iterator[Tell]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE notes (note text)")
        connection.execute("CREATE TABLE gates (open boolean)")

        def run(statement: str, *values: object) -> list[Any]:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

        yield run


class Program:
    """The program in this process: half of what a process of its own takes is its start."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *words: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as left:
            commands.magik.main([*words], prog_name="magik")
        out, err = self._capsys.readouterr()
        return left.value.code, out, err

    def __call__(self, *words: str, code: int = 0) -> str:
        """What ``magik jobs …`` printed; where it was refused, the line on stderr."""
        ended, out, err = self.run("jobs", *words)
        assert ended == code, (ended, out, err)
        assert code == REFUSED or not err, err
        return err if code == REFUSED else out

    def answer(self, *words: str, code: int = 0) -> Any:
        """The document."""
        return json.loads(self(*words, "--json", code=code))


@pytest.fixture
def program(database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setenv("MAGIK_DATABASE_URL", database)
    return Program(capsys)


def dead(tell: Tell, n: int = 1, **columns: str) -> None:
    """Dead letters by hand; columns are SQL, in which i counts."""
    given = {"job_class": "'Gone'", "expired_at": "now()", "error_count": "6", **columns}
    tell(
        f"INSERT INTO magik_jobs ({', '.join(given)}) SELECT {', '.join(given.values())} FROM generate_series(1, {n}) i"
    )


def idle(worker: WorkerProcess, dsn: str) -> None:
    """Wait until it sleeps: it holds the flag of its queue."""
    worker.wait_ready()
    until(lambda: advisory_locks(dsn, "%").get(TWO_KEYS))


# ---- beside workers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("act", ["cancel", "discard"])
def test_a_job_that_is_taken_away_from_its_run_leaves_nothing_and_is_not_tried_again(
    act: str, fails: bool, database: str, engine: Engine, effects: Effects, tell: Tell
) -> None:
    with Session(engine) as session, session.begin():
        session.add(held := Held(fails=fails))
    why = ["--why", "no more", "--by", "ann"] if act == "discard" else []
    with WorkerProcess(database, ACTED) as worker:
        until(lambda: effects.count("Held") == 1, 20)
        said = magik(database, "jobs", act, str(held.id), *why)
        assert re.search(
            rf"^1 of them still runs in \S+:{worker.pid}: .* If it does not, end that worker.$", said, re.MULTILINE
        )
        (one,) = answer(database, "workers")["workers"]
        assert [(each["id"], each["state"]) for each in one["jobs"]] == [(str(held.id), f"{PAST[act]}")]
        known = "- +-" if act == "cancel" else f"Held +{held.queue}"  # of a cancelled one the row is gone
        assert re.search(
            rf"^{held.id} +{known} .* {PAST[act]}, still running$", magik(database, "workers"), re.MULTILINE
        )
        tell("INSERT INTO gates VALUES (true)")
        worker.wait_log("event=job_superseded")
        with Session(engine) as session, session.begin():
            session.add(Quick(number=1))
        until(lambda: effects.count("Quick") == 1, what="the worker goes on")
        assert worker.terminate() == 0
    assert tell("SELECT note FROM notes") == []
    assert effects.count("Held") == 1
    left = tell("SELECT expired_at IS NOT NULL, last_error FROM magik_jobs")
    assert left == ([] if act == "cancel" else [(True, "Discarded by ann: no more")])


def test_a_worker_that_was_told_to_end_is_shown_as_draining(
    database: str, engine: Engine, effects: Effects, tell: Tell
) -> None:
    with Session(engine) as session, session.begin():
        session.add(Held())
    with WorkerProcess(database, ACTED) as worker:
        until(lambda: effects.count("Held") == 1, 20)
        assert not answer(database, "workers")["workers"][0]["draining"]
        worker.process.send_signal(signal.SIGTERM)
        until(lambda: tell("SELECT draining FROM magik_workers") == [(True,)])
        assert f":{worker.pid} " in (said := magik(database, "workers"))
        assert " draining " in said
        assert " draining " in magik(database, "jobs", "status")
        tell("INSERT INTO gates VALUES (true)")
        assert worker.process.wait(20) == 0


def test_dead_letters_that_are_retried_run_at_once(database: str, dsn: str, effects: Effects, tell: Tell) -> None:
    dead(tell, 3, job_class="'Quick'", args="jsonb_build_object('number', i)")
    with WorkerProcess(database, ACTED, poll_interval="60s") as worker:
        idle(worker, dsn)
        assert "3 jobs retried." in magik(database, "jobs", "retry", "--class", "Quick", "--yes")
        until(lambda: effects.count("Quick") == 3, AT_ONCE)
        until(lambda: tell("SELECT count(*) FROM magik_jobs") == [(0,)])


def test_a_job_that_is_to_run_now_starts_at_once(
    database: str, dsn: str, engine: Engine, effects: Effects, tell: Tell
) -> None:
    with Session(engine) as session, session.begin():
        session.add(job := Quick(number=1, delay="1h"))
    with WorkerProcess(database, ACTED, poll_interval="60s") as worker:
        idle(worker, dsn)
        assert answer(database, "jobs", "run-now", str(job.id))["done"] == [str(job.id)]
        until(lambda: effects.count("Quick") == 1, AT_ONCE)


def test_five_thousand_are_retried_with_a_twin_of_a_live_key_among_them(database: str, tell: Tell) -> None:
    dead(tell, 5000, key_digest="i::text::bytea")
    tell("INSERT INTO magik_jobs (job_class, key_digest) VALUES ('Gone', '77')")
    begun = time.monotonic()
    done = answer(database, "jobs", "retry", "--class", "Gone", "--state", "expired", "--yes", code=1)
    assert time.monotonic() - begun < 30
    assert (done["matched"], done["more"], len(done["done"])) == (5000, False, 4999)
    assert [each["why"] for each in done["left"]] == ["key_taken"]
    assert tell("SELECT count(*) FROM magik_jobs WHERE expired_at IS NULL AND error_count = 0") == [(5000,)]


# ---- what is asked first --------------------------------------------------------------------------------------------


def typed(database: str, keys: str, *words: str) -> tuple[int, str]:
    """The exit code, and what a terminal of 200 columns is sent, on which somebody types."""
    ours, theirs = pty.openpty()
    env = environment(database, None, {"COLUMNS": "200", "TERM": "xterm", "LANG": "C.UTF-8"})
    with closing(os.fdopen(ours, "r+b", buffering=0)) as screen:
        process = subprocess.Popen([*PROGRAM, *words], env=env, cwd=ROOT, stdout=theirs, stdin=theirs, stderr=theirs)
        os.close(theirs)
        screen.write(keys.encode())
        shown = b""
        try:
            while part := screen.read(65536):
                shown += part
        except OSError:  # the other side of a terminal ends with an error
            pass
        return process.wait(30), shown.decode()


def test_a_count_comes_first_and_who_says_no_has_changed_nothing(database: str, tell: Tell) -> None:
    dead(tell, 10, job_class="'SettleBatch'", queue="'payments'")
    dead(tell, 2, job_class="'Notify'", queue="'notices'")
    code, shown = typed(database, "n\n", "jobs", "retry", "--all")
    assert "12 jobs would be retried: 10 SettleBatch in payments, 2 Notify in notices." in shown
    assert (code, "Nothing was changed." in shown) == (1, True)
    code, shown = typed(database, "y\n", "jobs", "retry", "--class", "Notify")
    assert (code, "2 jobs retried." in shown) == (0, True)
    assert tell("SELECT count(*) FROM magik_jobs WHERE expired_at IS NULL") == [(2,)]


def test_a_bar_is_for_terminals_and_for_what_takes_its_time(database: str, tell: Tell) -> None:
    dead(tell, 600)
    _, shown = typed(database, "y\n", "jobs", "retry", "--all", "--limit", "100")
    assert "100 jobs retried." in shown
    assert "There are more that match" in shown
    assert "%" not in shown
    _, shown = typed(database, "y\n", "jobs", "retry", "--all")
    assert "100%" in shown


def test_who_cannot_be_asked_has_to_say_yes(program: Program, tell: Tell) -> None:
    dead(tell, 2)
    refused = program("retry", "--all", code=2)
    assert refused.startswith("MAGIK_ACT_UNCONFIRMED: 2 jobs would be retried: 2 Gone in default.")
    counted = program.answer("retry", "--all", "--dry-run")
    assert (counted["matched"], counted["done"]) == (2, [])
    assert tell("SELECT count(*) FROM magik_jobs WHERE expired_at IS NULL") == [(0,)]
    assert program("retry", "--all", "--yes") == "2 jobs retried.\n"
    assert program("retry", "--all", "--yes", code=1) == "None in a state for it; left as they are: 2 ready.\n"


def test_an_act_on_everything_has_to_be_asked_for(program: Program, tell: Tell) -> None:
    dead(tell)
    for act in ("retry", "cancel", "run-now"):
        refused = program(act, "--yes", code=2)
        assert refused.startswith("MAGIK_SETTING_INVALID: Nothing says which jobs are meant.")


def test_where_no_state_is_named_dead_letters_are_not_cancelled(program: Program, tell: Tell) -> None:
    dead(tell)
    tell("INSERT INTO magik_jobs (job_class) VALUES ('Gone')")
    assert program.answer("cancel", "--class", "Gone", "--yes")["matched"] == 1
    assert program.answer("cancel", "--class", "Gone", "--state", "expired", "--yes")["matched"] == 1
    assert tell("SELECT FROM magik_jobs") == []


def test_what_waits_after_a_failure_is_made_due_only_where_that_is_named(program: Program, tell: Tell) -> None:
    later = "now() + interval '1 h'"
    dead(tell, 3, expired_at="NULL", error_count="1", run_at=later)
    dead(tell, 2, expired_at="NULL", error_count="0", run_at=later)
    waiting = "SELECT count(*) FROM magik_jobs WHERE error_count = 1 AND run_at > now()"
    for state in ([], ["--state", "scheduled"]):
        assert program.answer("run-now", "--class", "Gone", *state, "--dry-run")["matched"] == 2
    assert program.answer("run-now", "--all", "--yes")["matched"] == 2
    assert tell(waiting) == [(3,)]
    assert program.answer("run-now", "--all", "--state", "errored", "--yes")["matched"] == 3
    assert tell(waiting) == [(0,)]


def test_ids_that_no_job_has_are_told_of(program: Program, tell: Tell) -> None:
    dead(tell)
    ((job_id,),) = tell("SELECT id FROM magik_jobs")
    words = ("retry", str(job_id), str(gone := uuid4()), "--yes")
    counted = program.answer(*words, "--dry-run", code=1)
    assert (counted["matched"], [(each["id"], each["why"]) for each in counted["left"]]) == (1, [(str(gone), "gone")])
    said = program(*words, code=1)
    assert "1 job retried.\n1 job left out:\n  1 gone: ended, cancelled, or never there\n" in said


def test_jobs_in_another_state_are_told_of_with_how_they_are_meant(program: Program, tell: Tell) -> None:
    dead(tell, 5, expired_at="NULL", error_count="0")
    assert program("retry", "--class", "Gone", code=1) == "None in a state for it; left as they are: 5 ready.\n"
    assert program.answer("retry", "--class", "Gone", code=1)["others"] == {"ready": 5}
    assert program("list", "--state", "expired", code=1) == "No such jobs. In other states: 5 ready.\n"
    tell("UPDATE magik_jobs SET run_at = now() + interval '1 h', error_count = 1")
    said = program("run-now", "--class", "Gone", code=1)
    assert said.endswith(": 5 errored. If these are meant: --state errored.\n")
    tell("UPDATE magik_jobs SET expired_at = now()")
    assert program("cancel", "--all", code=1).endswith(": 5 expired. If these are meant: --state expired.\n")
    said = program("run-now", *[str(row[0]) for row in tell("SELECT id FROM magik_jobs")], "--yes", code=1)
    assert "it is expired: magik jobs retry" in said


def test_a_misspelt_class_or_queue_is_said_to_be_one(program: Program, tell: Tell) -> None:
    dead(tell, job_class="'SettleBatch'", queue="'payments'")
    meant = "No such jobs. No job has the class 'SettleBach'; did you mean 'SettleBatch'?"
    for act in ("list", "retry"):
        assert program(act, "--class", "SettleBach", code=1).strip() == meant
        assert "did you mean 'payments'?" in program(act, "--queue", "paiments", code=1)
        assert program(act, "--class", "Unlike", code=1) == "No such jobs. No job has the class 'Unlike'.\n"


def test_of_what_is_chosen_it_is_said_what_no_job_has_at_all(program: Program, tell: Tell) -> None:
    dead(tell, job_class="'SettleBatch'", queue="'payments'")
    dead(tell, job_class="'Report'", queue="'reports'", expired_at="NULL", finished_at="now()")
    neither = "No such jobs. No job has the class 'Unlike'. No job has the queue 'nope'.\n"
    for act in ("list", "retry", "cancel"):
        assert program(act, "--queue", "nope", code=1) == "No such jobs. No job has the queue 'nope'.\n"
        assert program(act, "--class", "Unlike", "--queue", "nope", code=1) == neither
        assert program(act, "--class", "SettleBatch", "--queue", "reports", code=1) == "No such jobs.\n"
        assert program(act, "--class", "Report", "--older-than", "1h", code=1) == "No such jobs.\n"


def test_that_a_queue_is_paused_is_said_beside_what_waits_for_it(program: Program, tell: Tell) -> None:
    dead(tell, queue="'mail'")
    tell("INSERT INTO magik_queues VALUES ('mail', '2026-11-30 01:34:05Z', 'ada')")
    ((job_id,),) = tell("SELECT id FROM magik_jobs")
    assert "queue     mail (paused by ada since 2026-11-30T01:34:05Z: magik queues resume mail)\n" in program(
        "show", str(job_id)
    )
    said = program("retry", str(job_id))
    assert said == (
        "1 job retried.\nThe queue mail is paused; its jobs begin when it is resumed: magik queues resume mail\n"
    )


# ---- odd input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["list", "--state", "dead"], "MAGIK_SETTING_INVALID", "'dead' is none of ready, running, scheduled,"),
        (["list", "--state", "dead"], "MAGIK_SETTING_INVALID", "; did you mean expired? See magik jobs list --help."),
        (["list", "--state", "Dead-Letter"], "MAGIK_SETTING_INVALID", "; did you mean expired?"),
        (["list", "--state", "failed"], "MAGIK_SETTING_INVALID", "; did you mean errored or expired?"),
        (["list", "--state", "finnished"], "MAGIK_SETTING_INVALID", "; did you mean finished?"),
        (["cancel", "--state", "done"], "MAGIK_SETTING_INVALID", "scheduled, errored, expired."),
        (["retry", "--state", "finished"], "MAGIK_SETTING_INVALID", "'finished'"),
        (["list", "--older-than", "5"], "MAGIK_FILTER_INVALID", "INVALID: older_than='5': not a duration (Write"),
        (["list", "--arg", "tenant_id"], "MAGIK_SETTING_INVALID", "NAME=VALUE"),
        (["list", "--arg", "=7"], "MAGIK_SETTING_INVALID", "NAME=VALUE"),
        (["list", "--queue=\udcff"], "MAGIK_FILTER_INVALID", "queue"),
        (["list", "--limit", "0"], "MAGIK_SETTING_INVALID", "--limit"),
        (["retry", "7; DROP TABLE magik_jobs"], "MAGIK_SETTING_INVALID", "DROP TABLE"),
        (["discard", "--all", "--yes"], "MAGIK_SETTING_INVALID", "--why"),
        (["discard", "--all", "--yes", "--why", " "], "MAGIK_ARGS_INVALID", "why"),
        (["show"], "MAGIK_SETTING_INVALID", "ID"),
        (["show", str(uuid4()), "--module", "no.such"], "MAGIK_MODULE_IMPORT_FAILED", "no.such"),
    ],
)
def test_what_cannot_be_meant_is_refused_on_one_line(
    words: list[str], code: str, said: str, program: Program, tell: Tell
) -> None:
    refused = program(*words, code=2)
    assert refused.startswith(f"{code}: ")
    assert said in refused
    assert refused.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "help_of", "said"),
    [
        (["queues", "resume"], "queues resume", "Missing argument 'NAME'"),
        (["jobs", "list", "--nope"], "jobs list", "--nope"),
        (["status"], "", "did you mean `magik jobs status`?"),
        (["queue", "pause", "mail"], "", "did you mean `magik queues pause`"),
        (["jobs", "stats"], "jobs", "did you mean `magik jobs status`?"),
        (["queues", "resum", "mail"], "queues", "did you mean `magik queues resume`"),
        (["frobnicate"], "", "No such command 'frobnicate'. See"),
    ],
)
def test_a_slip_leads_to_the_help_of_what_was_meant(
    words: list[str], help_of: str, said: str, program: Program
) -> None:
    code, _, err = program.run(*words)
    assert (code, err.count("\n")) == (2, 1)
    assert said in err
    assert f"See {f'magik {help_of}'.strip()} --help. (magik explain MAGIK_SETTING_INVALID)" in err
    code, out, _ = program.run(*words, "--json")
    assert (code, [each["code"] for each in json.loads(out)["errors"]]) == (2, ["MAGIK_SETTING_INVALID"])


def test_who_resumes_may_be_said_and_is_not_kept(program: Program, tell: Tell) -> None:
    tell("INSERT INTO magik_queues (name) VALUES ('mail')")
    said = program.run("queues", "resume", "mail", "--by", "ada")
    assert said == (0, "The queue mail is resumed; who resumed it is not kept.\n", "")


@pytest.mark.parametrize("group", ["queues", "schedules"])
def test_the_help_of_a_group_cuts_no_sentence_short(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    commands.magik.main([group, "--help"], prog_name="magik")
    out = capsys.readouterr().out
    assert "..." not in out.replace("[ARGS]...", "")
    assert "Every queue with its figures" in out or "Move the next tick of a schedule to now" in out


def test_words_are_never_read_as_sql(program: Program, tell: Tell) -> None:
    dead(tell, args="jsonb_build_object('it''s', '%s; DROP TABLE magik_jobs; --')")
    for word in ("it's=%s; DROP TABLE magik_jobs; --", "x' OR true --=1", "x=1' OR '1'='1", ":name0=%(x)s"):
        matches = word.startswith("it's")
        found = program.answer("list", "--arg", word, code=0 if matches else 1)
        assert len(found["jobs"]) == matches
    assert program.answer("list", "--class", "' OR true --", "--queue", "%s", code=1)["jobs"] == []


def test_a_list_of_very_many_ids(database: str, tell: Tell) -> None:
    dead(tell, 500)
    ids = [str(row[0]) for row in tell("SELECT id FROM magik_jobs")] + [str(uuid4()) for _ in range(20_000)]
    done = answer(database, "jobs", "retry", *ids, *ids[:100], "--yes", code=1)
    assert (len(done["done"]), {each["why"] for each in done["left"]}, len(done["left"])) == (500, {"gone"}, 20_000)


def test_what_the_server_refuses_of_all_is_said_in_our_words(program: Program, tell: Tell) -> None:
    dead(tell)
    tell("REVOKE UPDATE, DELETE ON magik_jobs FROM CURRENT_USER")
    refused = program("cancel", "--all", "--yes", code=2)
    assert refused.startswith("MAGIK_GRANT_MISSING: ")
    assert "GRANT UPDATE, DELETE ON public.magik_jobs TO " in refused
    tell(
        "REVOKE SELECT ON magik_jobs FROM CURRENT_USER; GRANT SELECT (id, version, job_class, queue, priority, run_at,"
        " enqueued_at, error_count, last_error, failed_at, expired_at, finished_at) ON magik_jobs TO CURRENT_USER"
    )
    assert program("list").count("\n") == 2
    assert program("list", "--arg", "n=7", code=2).startswith("MAGIK_GRANT_MISSING: The server refused: ")
    tell("GRANT ALL ON magik_jobs TO CURRENT_USER")
    tell("ALTER TABLE magik_jobs RENAME error_count TO errors")
    refused = program("retry", "--class", "Gone", "--yes", code=2)
    assert refused.startswith("MAGIK_STATEMENT_REFUSED: The server refused: ")


def test_locked_tables_are_named_with_who_locks_them(program: Program, dsn: str, tell: Tell) -> None:
    dead(tell)
    with psycopg.connect(dsn, application_name="the dump") as locking:
        locking.execute("LOCK TABLE magik_jobs")
        refused = program("list", code=2)
        assert refused.startswith("MAGIK_TABLES_LOCKED: ")
        assert f"{locking.info.backend_pid} (the dump)" in refused


def test_what_is_done_when_it_is_interrupted_stays_and_is_counted(database: str, tell: Tell) -> None:
    """In the second of its batches, which does not end."""
    dead(tell, 2000)
    live = "SELECT count(*) FROM magik_jobs WHERE expired_at IS NULL"
    tell(
        "CREATE FUNCTION holds() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN WHILE ({live}) >= 250 LOOP PERFORM pg_sleep(0.02); END LOOP; RETURN NEW; END $$"
    )
    tell("CREATE TRIGGER holds BEFORE UPDATE ON magik_jobs FOR EACH ROW EXECUTE FUNCTION holds()")
    words = [*PROGRAM, "jobs", "retry", "--all", "--yes"]
    env = environment(database, None, {})
    with subprocess.Popen(words, env=env, cwd=ROOT, stderr=subprocess.PIPE, preexec_fn=hear_sigint) as process:
        until(lambda: tell(live)[0][0], 40)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    ((done,),) = tell(live)
    assert process.returncode == 130
    assert done == 250
    told = re.search("broken off: of 2,000 jobs ([0-9,]+) are done for certain.", err.decode())
    assert told is not None
    assert int(told[1].replace(",", "")) in {done, done - 250}, (
        "of a batch whose commit was interrupted it is not known"
    )


# ---- lists, and one row ---------------------------------------------------------------------------------------------


def test_a_list_says_why_and_how_many_there_are_more(program: Program, tell: Tell) -> None:
    dead(tell, 3, last_error="'ValueError: n=' || i || chr(10) || 'Traceback'")
    lines = program("list", "--limit", "2").splitlines()
    assert lines[0].split() == ["id", "class", "queue", "state", "expired", "at", "errors", "last", "error"]
    tell("INSERT INTO magik_jobs (job_class) VALUES ('Gone')")
    assert "  due, or over since  " in program("list", "--limit", "5")
    assert "  due  " in program("list", "--state", "ready")
    tell("DELETE FROM magik_jobs WHERE expired_at IS NULL")
    assert "ValueError: n=" in lines[1]
    assert lines[3] == "There are more; --limit shows them."
    found = program.answer("list", "--limit", "2")
    assert (found["more"], len(found["jobs"])) == (True, 2)
    assert set(found["jobs"][0]) == {
        *("id", "version", "job_class", "queue", "state", "priority", "run_at", "enqueued_at", "error_count"),
        *("failed_at", "expired_at", "finished_at", "why"),
    }


def test_nothing_in_a_row_commands_a_terminal(program: Program, tell: Tell) -> None:
    tell(
        "INSERT INTO magik_jobs (job_class, queue, args, context, last_error)"
        " VALUES (%s, %s, jsonb_build_object(%s::text, %s::text), jsonb_build_object('by', %s::text), %s)",
        *[EVIL] * 6,
    )
    ((job_id,),) = tell("SELECT id FROM magik_jobs")
    shown = program("list") + program("show", str(job_id), "--args") + program("cancel", "--all", "--dry-run")
    assert not [each for each in shown if not each.isprintable() and each != "\n"]
    assert shown.count(r"\u202e[bold]x") >= 9


def test_a_long_list_may_be_read_to_its_first_line_or_not_at_all(database: str, tell: Tell) -> None:
    dead(tell, 3_000)
    words = [*PROGRAM, "jobs", "list", "--limit", "3000"]
    env = environment(database, None, {})
    with subprocess.Popen(words, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split()[0] == b"id"
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    closed = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *words], env=env, cwd=ROOT, capture_output=True)
    assert (closed.returncode, closed.stdout, closed.stderr) == (0, b"", b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full, as Linux has one")
def test_an_answer_that_cannot_be_written_is_no_success(database: str, tell: Tell) -> None:
    dead(tell)
    words = ["sh", "-c", 'exec "$@" > /dev/full', "sh", *PROGRAM, "jobs", "list"]
    done = subprocess.run(words, env=environment(database, None, {}), cwd=ROOT, capture_output=True)
    assert done.returncode == REFUSED
    assert done.stderr.startswith(b"magik_sa: the answer could not be written: ")
    assert done.stderr.count(b"\n") == 1


def test_a_number_that_python_cannot_hold_is_shown_as_it_is(program: Program, tell: Tell) -> None:
    huge, fine = f"1{'0' * 400}.5", "0.10000000000000000001"
    dead(tell, 2, args=f"CASE i WHEN 1 THEN '{{\"n\": {huge}}}' ELSE '{{\"n\": {fine}}}' END::jsonb")
    for job_id, args in tell("SELECT id, args::text FROM magik_jobs"):
        assert program.answer("show", str(job_id), "--args")["job"]["arguments"] == args
        assert args in program("show", str(job_id), "--args")


@pytest.fixture
def secretive(engine: Engine, tell: Tell) -> UUID:
    """A job with a secret, and an argument that its class has no more."""
    with Session(engine) as session, session.begin():
        session.add(job := Quick(number=7, token="s3cret"))
    tell("""UPDATE magik_jobs SET args = args || '{"older": "0ther"}', last_error = 'E: x' || chr(10) || 'File'""")
    return job.id


def test_arguments_are_shown_when_asked_for_and_sensitive_ones_not_where_they_are_known(
    program: Program, secretive: UUID
) -> None:
    plain = program("show", str(secretive))
    assert "class     Quick" in plain
    assert plain.endswith("\n\nE: x\nFile\n")
    assert "number" not in plain
    everything = program("show", str(secretive), "--args")
    assert 'token="s3cret"' in everything
    assert "Which of the arguments are sensitive is known to the application's modules only" in everything
    masked = program("show", str(secretive), "--module", ACTED)
    assert "number=7" in masked
    assert "token=…" in masked
    assert "older=…" in masked
    assert program.answer("show", str(secretive))["job"]["arguments"] is None
    both = program.answer("show", str(secretive), "--args", "--module", ACTED)
    assert both["job"]["arguments"] == {"number": 7, "token": "…", "older": "…"}


def test_of_a_class_that_the_modules_do_not_declare_no_argument_is_shown(program: Program, tell: Tell) -> None:
    dead(tell, args="""'{"card": "4111"}'""")
    ((job_id,),) = tell("SELECT id FROM magik_jobs")
    shown = program("show", str(job_id), "--module", ACTED, "--args")
    assert "4111" not in shown
    assert "do not declare this class" in shown


def test_a_job_that_is_not_there(program: Program) -> None:
    assert program("show", str(uuid4()), code=1).startswith("No such job")
    assert program("list", code=1) == "No such jobs.\n"
    gone = str(uuid4())
    assert program.answer("cancel", gone, code=1)["matched"] == 0
