"""``with Worker(…)`` in a process of yours: jobs run, and when the block ends nothing of it is left.

Each program runs in an interpreter of its own, with warnings as errors: in the tests' own process other job classes
are declared, and a worker refuses to start for those that say nothing of their policy.
"""

from __future__ import annotations

import sys
from textwrap import dedent

from sqlalchemy import text
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import sessionmaker

from tests.tools import asking
from tests.tools.effects import Effects
from tests.tools.workers import environment

START = """
import atexit, os, sys, threading, time
import psycopg, pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from magik_sa import BootRefused, Worker
from tests.jobs.block import Lasting, Telling, going_on
from tests.tools.effects import Effects
from tests.tools.waiting import never, until

url = os.environ["MAGIK_DATABASE_URL"]
engine = create_engine(url, pool_size=3, connect_args={"application_name": "shop"})
atexit.register(engine.dispose)
effects = Effects(url)

def add(*jobs):
    with Session(engine) as session, session.begin():
        session.add_all(jobs)
    return jobs

def done(job):
    until(lambda: effects.starts(job.id) and effects.starts(job.id)[0].ended, what="the job ran")
    return effects.starts(job.id)[0]

def draining():  # it has given back what it had not begun, and claims nothing more
    with psycopg.connect(effects.dsn, application_name="looking") as connection:
        return connection.execute("SELECT draining FROM magik_workers").fetchall() == [(True,)]

def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("magik")]

def sessions(names="^magik_sa"):
    with psycopg.connect(effects.dsn, application_name="looking") as connection:
        return connection.execute(
            "SELECT application_name FROM pg_stat_activity WHERE application_name ~ %s ORDER BY 1", [names]).fetchall()
"""


def run(database: str, body: str) -> str:
    """Run a program to its end; what it printed to stderr."""
    command = [sys.executable, "-W", "error", "-c", START + dedent(body)]
    ended = asking.run(command, env=environment(database, None, {}))
    assert ended.returncode == 0, ended.stderr
    return ended.stderr.decode()


def test_a_block_runs_jobs_and_leaves_no_thread_and_no_connection(database: str, effects: Effects) -> None:
    stderr = run(
        database,
        """
        for _ in range(2):
            with Worker(engine.url, concurrency=2) as worker:  # SQLAlchemy's own, password and all
                (job,) = add(Telling())
                assert done(job).thread.startswith("magik-performer-")
                assert sorted(threads()) == [
                    "magik-locker", "magik-performer-1", "magik-performer-2", "magik-watchdog"]
                assert ("magik_sa locker",) in sessions()
                started = time.monotonic()
            assert time.monotonic() - started < 2
            assert threads() == []
            until(lambda: sessions() == [], what="the sessions are gone")
        """,
    )
    assert stderr == ""
    assert effects.count("Telling") == 2


def test_a_process_with_many_open_files_is_as_good_as_another(database: str, effects: Effects) -> None:
    """The descriptors of all connections are above 1,024 here, those of the locking connection's next life too."""
    run(
        database,
        """
        import resource

        NAMED = "SELECT pid, application_name FROM pg_stat_activity WHERE datname = current_database()"

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, most))
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
        with Worker(url, concurrency=1) as worker:
            done(*add(Telling()))
            assert worker.locker.mail.fileno() > 1_024
            with psycopg.connect(effects.dsn, autocommit=True) as other:
                for pid, name in other.execute(NAMED).fetchall():  # that of the start's checks may be among them
                    if name == "magik_sa locker":
                        other.execute("SELECT pg_terminate_backend(%s)", [pid])
            until(lambda: worker.locker.line.lives == 2, what="the locking connection is back")
            done(*add(Telling()))
        """,
    )


def test_one_worker_can_be_entered_again(database: str, effects: Effects) -> None:
    run(
        database,
        """
        worker = Worker(url, concurrency=1)
        for _ in range(2):
            with worker:
                assert done(*add(Telling())).note.endswith("False")
            assert threads() == []
        """,
    )


def test_a_block_with_schedules_fires_them_and_leaves_no_thread_and_no_connection(
    database: str, effects: Effects
) -> None:
    stderr = run(
        database,
        """
        from magik_sa import Schedule

        class Hourly(Telling, policy="system"):
            schedule = Schedule(every="1h")

        DUE = "UPDATE magik_job_schedules SET next_run_at = now()"
        for made in (sessionmaker(engine), None):
            effects.clear()
            with Worker(url if made is None else None, session=made, concurrency=2):
                assert "magik-scheduler" in threads()
                with psycopg.connect(effects.dsn) as connection:
                    connection.execute(DUE)
                until(lambda: effects.count() == 1, what="it has fired")
                started = time.monotonic()
            assert time.monotonic() - started < 2
            assert threads() == []
            until(lambda: sessions() == [], what="the sessions are gone")
        """,
    )
    assert stderr == ""


def test_an_error_in_the_block_ends_the_worker_and_goes_on(database: str, effects: Effects) -> None:
    run(
        database,
        """
        with pytest.raises(KeyError), Worker(url, concurrency=1):
            raise KeyError
        assert threads() == []
        until(lambda: sessions() == [], what="the sessions are gone")
        """,
    )


def test_the_applications_own_sessions_are_used(database: str, effects: Effects) -> None:
    run(
        database,
        """
        class ShopSession(Session):
            pass

        made = sessionmaker(engine, class_=ShopSession, info={"shop": "ours"})
        for session in (made, scoped_session(made), made):
            with Worker(session=session, concurrency=2):
                note = done(*add(Telling())).note
                assert note == "ShopSession ours False", note
                until(lambda: sessions() == [("magik_sa locker",)], what="that of the start's checks is gone")
            assert threads() == []
            until(lambda: sessions() == [], what="the locker's session is gone")
        with made() as session:  # and are the application's as before
            assert isinstance(session, ShopSession)
            assert session.get(Telling, add(Telling())[0].id).number == 0
        """,
    )


def test_what_is_running_when_the_block_ends_is_waited_for(
    database: str, effects: Effects, Session: sessionmaker[OrmSession]
) -> None:
    run(
        database,
        """
        with Worker(url, concurrency=1):
            (job, after) = add(Lasting(priority=1), Telling(priority=2))
            until(lambda: effects.starts(job.id))
            threading.Thread(target=lambda: (until(draining), going_on.set())).start()
        assert effects.starts(job.id)[0].ended
        assert effects.starts(after.id) == []
        assert threads() == []
        """,
    )
    with Session() as session:
        assert session.scalars(text("SELECT job_class FROM magik_jobs")).all() == ["Telling"]


def test_what_outlasts_the_shutdown_timeout_keeps_its_lock_until_it_ends(database: str, effects: Effects) -> None:
    run(
        database,
        """
        with Worker(url, concurrency=1, shutdown_timeout="200ms"):
            (job,) = add(Lasting())
            until(lambda: effects.starts(job.id))
            started = time.monotonic()
        assert time.monotonic() - started < 1.2
        with Worker(url, concurrency=1, app_name="other", poll_interval="100ms"):
            never(lambda: len(effects.starts(job.id)) > 1, during=0.5)
            going_on.set()
            until(lambda: effects.starts(job.id)[0].ended)
            until(lambda: len(threads()) == 3, what="only the other worker's threads are left")
            never(lambda: len(effects.starts(job.id)) > 1, during=0.5)
        """,
    )


def test_a_worker_that_is_refused_leaves_nothing_behind(database: str, effects: Effects) -> None:
    run(
        database,
        """
        def refused(*codes, **options):
            with pytest.raises(BootRefused) as caught, Worker(options.pop("database_url", url), **options):
                raise AssertionError("it started")
            assert [finding.code for finding in caught.value.findings] == list(codes), caught.value
            assert len(str(caught.value).splitlines()) == len(codes)
            assert threads() == []

        setting = "MAGIK_SETTING_INVALID"
        refused(setting, concurrency=0)
        refused(setting, poll_interval=5)
        refused(setting, colour="red")
        refused(setting, setting, concurrency="x", poll_interval="soon")
        refused("MAGIK_MODULE_IMPORT_FAILED", modules=["nowhere"])
        refused("MAGIK_DATABASE_URL_INVALID", database_url="nonsense")
        refused("MAGIK_DATABASE_UNREACHABLE", database_url="postgresql://localhost:1/x")
        refused("MAGIK_SESSION_INVALID", session="nowhere:Session")
        small = create_engine(url, pool_size=1, max_overflow=0)
        refused("MAGIK_POOL_SIZE_MISMATCH", session=sessionmaker(small))
        small.dispose()  # the application's own
        refused("MAGIK_SESSION_NOT_THREAD_KEYED", concurrency=1,
                session=scoped_session(sessionmaker(engine), scopefunc=lambda: 1))
        with psycopg.connect(effects.dsn, autocommit=True) as connection:
            connection.execute("UPDATE magik_schema SET version = 99")
            refused("MAGIK_SCHEMA_AHEAD")
            connection.execute("UPDATE magik_schema SET version = 1")
        until(lambda: sessions() == [], what="no session is left")
        with Worker(url, concurrency=1):
            done(*add(Telling()))
        """,
    )
