"""``magik prune`` as a program, and what a table holds when many jobs are over."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import sessionmaker

from magik_sa import bulk_enqueue
from tests.jobs import kept
from tests.tools.program import answer, magik
from tests.tools.rows import DAY, WEEK, fill, one, rows
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

MODULE = "tests.jobs.kept"
MANY, DEAD = 3000, 30
UNSAID = "dead letters (--expired-older-than), what once() remembers (--effects-older-than)"


def enqueue(Session: sessionmaker[OrmSession], cls: type[kept.Fleeting]) -> None:
    with Session.begin() as session:
        bulk_enqueue(session, (cls(fails=n % (MANY // DEAD) == 0) for n in range(MANY)))


def test_by_default_no_finished_row_is_kept_and_dead_letters_are(
    database: str, app: psycopg.Connection[Any], Session: sessionmaker[OrmSession]
) -> None:
    enqueue(Session, kept.Fleeting)
    with WorkerProcess(database, MODULE) as worker:
        worker.wait_ready()
        until(lambda: not rows(app, "expired_at IS NULL"), 60)
    assert (rows(app), rows(app, "finished_at IS NOT NULL"), rows(app, "expired_at IS NOT NULL")) == (DEAD, 0, DEAD)
    magik(database, "prune", MODULE)
    assert rows(app) == DEAD


def test_kept_rows_go_while_a_worker_works_and_no_live_row_is_touched(
    database: str, app: psycopg.Connection[Any], Session: sessionmaker[OrmSession]
) -> None:
    """Whoever deletes a live row, and is not the worker, is written down. One job runs until the rest is pruned."""
    app.execute(
        """
        CREATE TABLE touched (id uuid);
        CREATE FUNCTION touched() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          INSERT INTO touched VALUES (OLD.id); RETURN NULL; END $$;
        CREATE TRIGGER touched AFTER DELETE OR UPDATE ON magik_jobs FOR EACH ROW
          WHEN (OLD.finished_at IS NULL AND current_setting('application_name') LIKE '%prune')
          EXECUTE FUNCTION touched()"""
    )
    fill(app, MANY, DAY)
    with Session.begin() as session:
        session.add(kept.Pondering())
    enqueue(Session, kept.KeptADay)
    with WorkerProcess(database, MODULE) as worker:
        worker.wait_ready()
        until(lambda: rows(app, "finished_at > now() - interval '1 h'"))
        assert answer(database, "prune", MODULE)["finished"] == {DAY: MANY}
        assert rows(app, "finished_at IS NULL AND expired_at IS NULL")  # it still works
        app.execute("CREATE TABLE go ()")
        until(lambda: not rows(app, "finished_at IS NULL AND expired_at IS NULL"), 60)
    assert (rows(app, "finished_at IS NOT NULL"), rows(app, "expired_at IS NOT NULL")) == (MANY - DEAD, DEAD)
    assert one(app, "SELECT count(*) FROM touched") == 0


def test_what_it_says_and_how_it_ends(database: str, app: psycopg.Connection[Any]) -> None:
    fill(app, 1200, DAY)
    fill(app, 1, WEEK, "8 days")
    fill(app, 2, "Gone\x1b[2J", "91 days")
    assert magik(database, "prune", MODULE, "--dry-run").splitlines() == [
        f"1,201 finished rows would be removed: 1,200 {DAY}, 1 {WEEK}",
        f"would be kept: finished rows of {DAY} younger than 1d, of {WEEK} younger than 7d",
        r"left alone, as no class here says how long they are kept: rows of Gone\x1b[2J (--older-than does)",
        f"would be kept, as nothing was said of them: {UNSAID}",
    ]
    assert answer(database, "prune", MODULE, "--class", WEEK) == {
        "dry_run": False,
        "finished": {WEEK: 1},
        "kept": {WEEK: "7d"},
        "left": [],
        "failed": {},
        **dict.fromkeys(("expired", "notes", "workers", "effects"), 0),
    }
    assert "left alone" not in magik(database, "prune", "--class", "Gone", "--expired-older-than", "1d")
    app.execute("CREATE TABLE receipts AS SELECT id FROM magik_jobs WHERE job_class LIKE 'Gone%'")
    app.execute("ALTER TABLE receipts ADD FOREIGN KEY (id) REFERENCES magik_jobs")
    done = answer(database, "prune", "--older-than", "1h", code=1)
    assert done["finished"] == {DAY: 1200}
    assert list(done["failed"]) == ["Gone\x1b[2J"]
    assert rows(app) == 2


def test_of_each_kind_it_says_what_went_and_what_stays(database: str, app: psycopg.Connection[Any]) -> None:
    assert magik(database, "prune", MODULE).splitlines() == [
        "0 finished rows removed: there are none",
        f"kept, as nothing was said of them: {UNSAID}",
    ]
    fill(app, 2, DAY, "1 hour")
    fill(app, 1, DAY, "2 days", "expired_at")
    app.execute(
        "INSERT INTO magik_effects (scope, key_digest, done_at) VALUES ('s', sha256(''), now() - interval '3 d')"
    )
    app.execute(
        "INSERT INTO magik_claims (job_id, worker, backend_pid, backend_start)"
        " VALUES (gen_random_uuid(), 'gone', 999999, now())"
    )
    app.execute("INSERT INTO magik_workers VALUES (999999, now(), 'gone:1', '{default}')")
    assert magik(
        database, "prune", MODULE, "--expired-older-than", "1d", "--effects-older-than", "9d"
    ).splitlines() == [
        "0 finished rows removed: none is old enough",
        "1 dead letter removed",
        "0 memories of once() removed",
        "1 note of a claim whose worker is gone removed",
        "1 row of a worker that is gone removed",
        f"kept: finished rows of {DAY} younger than 1d",
    ]
    finished = "finished rows (name modules, or --older-than)"
    assert magik(database, "prune", "--effects-older-than", "1d").splitlines() == [
        "1 memory of once() removed",
        f"kept, as nothing was said of them: {finished}, dead letters (--expired-older-than)",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "It was not said what is over"),
        (["--class", DAY], "It was not said what is over"),
        (["--older-than", "30"], "--older-than='30': not a duration"),
        (["--expired-older-than", "0s"], "--expired-older-than='0s': out of range"),
        ([MODULE, "--class", "KeptADya"], "did you mean 'KeptADay'?"),
        ([MODULE, "--keep", "1d"], "--keep"),
        (["tests.jobs.nowhere"], "Importing 'tests.jobs.nowhere' failed"),
    ],
)
def test_what_is_asked_wrongly_is_refused_and_nothing_removed(
    database: str, app: psycopg.Connection[Any], words: list[str], said: str
) -> None:
    fill(app, 1, DAY)
    assert said in magik(database, "prune", *words, code=2)
    assert rows(app) == 1


def test_a_database_without_the_tables_is_told_of_as_everywhere(empty_database: str) -> None:
    assert magik(empty_database, "prune", MODULE, code=2).startswith("MAGIK_SCHEMA_MISSING: ")


def test_modules_may_stand_in_the_environment(database: str, app: psycopg.Connection[Any]) -> None:
    fill(app, 2, DAY)
    assert answer(database, "prune", env={"MAGIK_MODULES": MODULE})["finished"] == {DAY: 2}
