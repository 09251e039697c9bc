"""Boot names everything that stands against working: exit code 2, one line a finding, no traceback and no password."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from tests.tools.server import Server
from tests.tools.waiting import until
from tests.tools.workers import READY, WorkerProcess, dsn_of

MODULES = {
    "fine": """
        from magik_sa import Job
        class Fine(Job, policy="system"):
            def perform(self, session): ...
        """,
    "recurring": """
        from magik_sa import Job, Schedule
        class Recurring(Job, policy="system"):
            schedule = Schedule(every="1h")
            def perform(self, session): ...
        """,
    "empty": "X = 1",
    "broken": "def f(:",
    "leaving": "raise SystemExit(0)",
    "wordy": "raise RuntimeError('first line\\nsecond line')",
    "misdeclared": """
        from magik_sa import Job
        class Wrong(Job, polcy="system"):
            def perform(self, session): ...
        """,
    "lawless": """
        from magik_sa import Job
        class Lawless(Job):
            def perform(self, session): ...
        """,
    "strange": """
        from magik_sa import Job, policy
        @policy("settle")
        def may_settle(job, session): return True
        class Strange(Job, policy="setle"):
            def perform(self, session): ...
        """,
    "zoned": """
        from magik_sa import Job, Schedule
        class Zoned(Job, policy="system"):
            schedule = Schedule(cron="0 3 * * *", zone="America/New_Yrok")
            def perform(self, session): ...
        """,
    "zoneless": """
        from magik_sa import Job, Schedule
        class Zoneless(Job, policy="system"):
            schedule = Schedule(cron="0 3 * * *")
            def perform(self, session): ...
        """,
    "endless": """
        from magik_sa import Job, Schedule
        class Endless(Job, policy="system"):
            schedule = Schedule(cron="0 0 30 2 *", zone="UTC")
            def perform(self, session): ...
        """,
    "sourceless": """
        from sqlalchemy.orm import Mapped
        from magik_sa import Job, Schedule, arg
        class Sourceless(Job, policy="system"):
            schedule = Schedule(every="10m")
            tenant: Mapped[int] = arg()
            def perform(self, session): ...
        """,
    "bare": """
        import sys
        sys.modules["tzdata"] = None
        from magik_sa import Job, Schedule
        class Bare(Job, policy="system"):
            schedule = Schedule(cron="0 3 * * *", zone="Europe/Paris")
            def perform(self, session): ...
        """,
    "clashing": """
        from magik_sa import Job, Schedule
        class Report(Job, policy="system", name="report:eu"):
            schedule = Schedule(every="1h")
            def perform(self, session): ...
        class Another(Job, policy="system", name="report"):
            schedule = (Schedule(every="1h", name="eu"), Schedule(every="1h", name="EU"), Schedule(every="1h"))
            def perform(self, session): ...
        """,
    "apart": """
        from sqlalchemy import ForeignKey
        from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
        from magik_sa import Job
        class Base(DeclarativeBase): ...
        class Fine(Job, policy="system"):
            def perform(self, session): ...
        class Order(Base):
            __tablename__ = "orders"
            id: Mapped[int] = mapped_column(primary_key=True)
            job_id = mapped_column(ForeignKey("magik_jobs.id"))
            job: Mapped[Job] = relationship()
        """,
    "mixed": """
        from sqlalchemy.orm import DeclarativeBase
        from magik_sa import Job
        class Base(DeclarativeBase): ...
        class Mixed(Base, Job, policy="system"):
            def perform(self, session): ...
        """,
    "sessions": """
        import contextvars, os
        from sqlalchemy import StaticPool, create_engine
        from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
        from sqlalchemy.orm import scoped_session, sessionmaker
        url = os.environ["MAGIK_DATABASE_URL"]
        request = contextvars.ContextVar("request", default=None)
        Session = sessionmaker(create_engine(url, pool_size=5, max_overflow=0))
        number, one = 5, Session()
        everybodys = scoped_session(Session, scopefunc=lambda: 1)
        requests = scoped_session(Session, scopefunc=request.get)
        small = sessionmaker(create_engine(url, pool_size=2, max_overflow=0))
        static = sessionmaker(create_engine(url, poolclass=StaticPool))
        two_phases = sessionmaker(Session.kw["bind"], twophase=True)
        not_begun = sessionmaker(Session.kw["bind"], autobegin=False)
        unbound = sessionmaker()
        lite = sessionmaker(create_engine("sqlite://"))
        asynchronous = async_sessionmaker(create_async_engine(url))
        """,
}


@dataclass
class Start:
    """How a worker is started, and the codes and words of the lines that it has to print, in their order."""

    findings: list[tuple[str, str]]
    modules: tuple[str, ...] = ("fine",)
    options: dict[str, Any] = field(default_factory=dict)
    url: str = ""  # a template of the test database's parts
    env: dict[str, str] = field(default_factory=dict)
    pyproject: str = ""
    place: str = "migrated"


def session(name: str, code: str, word: str, **options: object) -> Start:
    """A start with one of the factories above."""
    return Start([(code, word)], options={"session": f"sessions:{name}", "concurrency": 5, **options})


SETTING = "MAGIK_SETTING_INVALID"
UNREACHABLE, URL = "MAGIK_DATABASE_UNREACHABLE", "MAGIK_DATABASE_URL_INVALID"
IMPORT, POLICY = "MAGIK_MODULE_IMPORT_FAILED", "MAGIK_POLICY_UNDECLARED"
STARTS: dict[str, Start] = {
    "no such module": Start([(IMPORT, "nowhere")], ("nowhere",)),
    "a syntax error": Start([(IMPORT, "broken.py")], ("broken",)),
    "SystemExit": Start([(IMPORT, "SystemExit")], ("leaving",)),
    "an error of two lines": Start([(IMPORT, "first line")], ("wordy",)),
    "three bad modules": Start([(IMPORT, "broken"), (IMPORT, "nowhere")], ("broken", "fine", "nowhere")),
    "a class declared wrongly": Start([("MAGIK_OPTION_UNKNOWN", "polcy")], ("misdeclared",)),
    "a module without jobs": Start([("MAGIK_NO_JOBS", "No job class was declared in empty.")], ("empty",)),
    "no module": Start([("MAGIK_NO_JOBS", "no module was named")], ()),
    "two metadata objects, a key between": Start([(IMPORT, "could not find table 'magik_jobs'")], ("apart",)),
    "two metadata objects, one class": Start(
        [("MAGIK_NAME_RESERVED", "Mixed derives from Job and from Base")], ("mixed",)
    ),
    "no policy": Start([(POLICY, "Lawless")], ("lawless", "fine")),
    "unknown verb": Start([("MAGIK_POLICY_UNKNOWN", "'setle'")], ("strange",)),
    "bad schedules": Start(
        [
            ("MAGIK_SCHEDULE_ZONE_UNKNOWN", "America/New_York"),
            ("MAGIK_SCHEDULE_ZONE_MISSING", "zone"),
            ("MAGIK_SCHEDULE_NEVER", "0 0 30 2 *"),
            ("MAGIK_SCHEDULE_ARGS_INVALID", "'tenant'"),
        ],
        ("zoned", "zoneless", "fine", "endless", "sourceless"),
    ),
    "no time zones": Start([("MAGIK_SCHEDULE_ZONE_UNKNOWN", "package tzdata")], ("bare",), env={"PYTHONTZPATH": ""}),
    "two schedules of one name": Start([("MAGIK_SCHEDULE_NAME_TAKEN", "'report:eu'")], ("clashing",)),
    "no URL": Start([("MAGIK_DATABASE_URL_MISSING", "MAGIK_DATABASE_URL")], url=" "),
    "no URL at all": Start([(URL, "cannot be read")], url="localhost"),
    "an unclosed bracket": Start([(URL, "cannot be read")], url="postgresql://u:{secret}@[::1/x"),
    "no number for a port": Start([(URL, "cannot be read")], url="postgresql://u:{secret}@localhost:port/x"),
    "another database": Start([(URL, "'mysql'")], url="mysql://u:{secret}@localhost/x"),
    "an unknown driver": Start([(URL, "nosuch")], url="postgresql+nosuch://u:{secret}@{host}:{port}/{name}"),
    "a driver not installed": Start([(URL, "pygresql")], url="postgresql+pygresql://u:{secret}@{host}:{port}/{name}"),
    "an asynchronous driver": Start([(URL, "asyncpg")], url="postgresql+asyncpg://u:{secret}@{host}:{port}/{name}"),
    "another driver": Start([(URL, "pg8000")], url="postgresql+pg8000://u:{secret}@{host}:{port}/{name}"),
    "unknown word in the URL": Start([(URL, "colour")], url="postgresql://u:{secret}@{host}/x?colour=red"),
    "wrong port": Start([(UNREACHABLE, "refused")], url="postgresql://u:{secret}@localhost:1/x"),
    "wrong host": Start([(UNREACHABLE, "nowhere.invalid")], url="postgresql://u:{secret}@nowhere.invalid/x"),
    "wrong database": Start([(UNREACHABLE, '"nowhere"')], url="postgresql://{user}:{password}@{host}:{port}/nowhere"),
    "wrong password": Start(
        [(UNREACHABLE, "password")], url="postgresql://{user}:{secret}@{host}:{port}/{name}", place="guarded"
    ),
    "a server that takes no writes": Start(
        [("MAGIK_SERVER_READ_ONLY", "no writes")],
        url="postgresql://{user}:{password}@{host}:{port}/{name}?options=-c%20default_transaction_read_only%3Don",
    ),
    "more than the server has": Start([("MAGIK_CONNECTION_BUDGET", "501 connections")], options={"concurrency": 500}),
    "bad locking URL": Start([(URL, "cannot be read")], options={"locking_url": "nonsense"}),
    "locking elsewhere": Start([(UNREACHABLE, "refused")], options={"locking_url": "postgresql://localhost:1/x"}),
    "no tables": Start([("MAGIK_SCHEMA_MISSING", "search_path of the database ")], place="empty"),
    "tables elsewhere": Start([("MAGIK_SCHEMA_MISSING", "schema nowhere")], env={"MAGIK_SCHEMA": "nowhere"}),
    "schema ahead": Start([("MAGIK_SCHEMA_AHEAD", "version 99")], place="ahead"),
    "session: no colon": Start([("MAGIK_SESSION_INVALID", "sessions")], options={"session": "sessions"}),
    "session: no module": Start([("MAGIK_SESSION_INVALID", "nowhere")], options={"session": "nowhere:Session"}),
    "session: no attribute": session("nothing", "MAGIK_SESSION_INVALID", "nothing"),
    "session: a number": session("number", "MAGIK_SESSION_INVALID", "int"),
    "session: a Session": session("one", "MAGIK_SESSION_INVALID", "Session"),
    "session: two phases": session("two_phases", "MAGIK_SESSION_INVALID", "twophase=True"),
    "session: not begun": session("not_begun", "MAGIK_SESSION_INVALID", "autobegin=False"),
    "session: not bound": session("unbound", "MAGIK_SESSION_INVALID", "engine"),
    "session: SQLite": session("lite", "MAGIK_SESSION_INVALID", "PostgreSQL"),
    "session: async": session("asynchronous", "MAGIK_SESSION_INVALID", "async_sessionmaker"),
    "session: everybody's": session("everybodys", "MAGIK_SESSION_NOT_THREAD_KEYED", "threads"),
    "session: a request's": session("requests", "MAGIK_SESSION_NOT_THREAD_KEYED", "threads"),
    "session: small pool": session("small", "MAGIK_POOL_SIZE_MISMATCH", "2 connections for 5 threads"),
    "session: one connection": session("static", "MAGIK_POOL_SIZE_MISMATCH", "1 connections for 5 threads"),
    "session: pool of five": session("Session", "MAGIK_POOL_SIZE_MISMATCH", "for 6 threads", concurrency=6),
    "session: no connection for the scheduler": Start(
        [("MAGIK_POOL_SIZE_MISMATCH", "5 connections for 6 threads")],
        modules=("recurring",),
        options={"session": "sessions:Session", "concurrency": 5},
    ),
    "unknown option": Start([(SETTING, "--colour")], options={"colour": "red"}),
    "no threads": Start([(SETTING, "concurrency='0'")], options={"concurrency": 0}),
    "bare number": Start([(SETTING, "poll-interval='5'")], options={"poll_interval": 5}),
    "bare number in the environment": Start([(SETTING, "poll-interval")], env={"MAGIK_POLL_INTERVAL": "5"}),
    "queues in one word": Start([(SETTING, "--queue default --queue mail")], options={"queue": ["default,mail"]}),
    "long queue": Start([(SETTING, "queues")], options={"queue": ["q" * 500]}),
    "unknown word in pyproject": Start([(SETTING, "colour")], pyproject='[tool.magik_sa]\ncolour = "red"'),
    "bad pyproject": Start([(SETTING, "pyproject.toml")], pyproject="[tool.magik_sa\n"),
    "pyproject with no table": Start([(SETTING, "pyproject.toml")], pyproject="[tool]\nmagik_sa = 5"),
    "all options at once": Start(
        [(SETTING, "concurrency"), (SETTING, "poll-interval"), (SETTING, "shutdown-timeout"), (SETTING, "log-format")],
        options={"concurrency": 0, "poll_interval": 5, "shutdown_timeout": "soon", "log_format": "xml"},
    ),
    "everything at once": Start(
        [
            (POLICY, "Lawless"),
            ("MAGIK_POLICY_UNKNOWN", "Strange"),
            ("MAGIK_POOL_SIZE_MISMATCH", "2 connections"),
            ("MAGIK_SCHEMA_MISSING", "search_path"),
        ],
        modules=("lawless", "strange"),
        options={"session": "sessions:small", "concurrency": 5},
        place="empty",
    ),
}
SECRET = "s3cr3t%40word"


@pytest.fixture(scope="module")
def places(server: Server, template: str) -> Iterator[Mapping[str, str]]:
    """A database with the tables, one without, one with those of a later release, and one that asks for a password."""
    with ExitStack() as stack:
        kinds = {"migrated": template, "empty": None, "ahead": template, "guarded": template}
        urls = {kind: server.url(stack.enter_context(server.created(made_from))) for kind, made_from in kinds.items()}
        with psycopg.connect(dsn_of(urls["ahead"])) as connection:
            connection.execute("UPDATE magik_schema SET version = 99")
        stack.enter_context(guarded(server, make_url(urls["guarded"]).database or ""))
        yield urls


@contextmanager
def guarded(server: Server, name: str) -> Iterator[None]:
    """Have the run's own server ask for a password at this database; a server that was given may do so anyway."""
    if server.cluster is None:
        yield
        return
    file = Path(server.execute("SHOW hba_file")[0][0])
    before = file.read_text("utf-8")
    file.write_text(f"host {name} all all scram-sha-256\n{before}", "utf-8")
    server.execute("SELECT pg_reload_conf()")
    until(lambda: asks(server.url(name)), what="the server has read it")
    yield
    file.write_text(before, "utf-8")
    server.execute("SELECT pg_reload_conf()")


def asks(url: str) -> bool:
    """Whether it lets nobody in with a wrong password."""
    try:
        psycopg.connect(dsn_of(url), password="wrong").close()
    except psycopg.OperationalError:
        return True
    return False


@pytest.fixture(scope="module")
def ended(places: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[int, str]]:
    """Every start's exit code and stderr; some at a time, as most of it is waiting for imports."""
    modules = tmp_path_factory.mktemp("modules")
    for name, source in MODULES.items():
        lines = source.replace("\n        ", "\n")
        (modules / f"{name}.py").write_text(lines, "utf-8")
    with ThreadPoolExecutor(3) as pool:
        runs = {
            name: pool.submit(run, start, places[start.place], modules, tmp_path_factory.mktemp("folder"))
            for name, start in STARTS.items()
        }
    return {name: run.result() for name, run in runs.items()}


def run(start: Start, database: str, modules: Path, folder: Path) -> tuple[int, str]:
    """The exit code and the stderr of a worker that is not to start."""
    if start.pyproject:
        (folder / "pyproject.toml").write_text(start.pyproject, "utf-8")
    url = make_url(database)
    parts: dict[str, Any] = {"host": url.host, "port": url.port, "name": url.database, "secret": SECRET}
    parts |= {"user": url.username, "password": url.password}
    env = {**start.env, **({"MAGIK_DATABASE_URL": start.url.strip().format(**parts)} if start.url else {})}
    with WorkerProcess(database, *start.modules, env=env, path=modules, cwd=folder, **start.options) as worker:
        until(lambda: worker.returncode is not None or READY.search(worker.stderr()), 60, every=0.05)
        return worker.returncode or 0, worker.stderr()


@pytest.mark.parametrize("name", STARTS)
def test_a_worker_refuses_to_start(ended: Mapping[str, tuple[int, str]], server: Server, name: str) -> None:
    code, stderr = ended[name]
    if name == "wrong password" and READY.search(stderr) and server.cluster is None:
        assert "s3cr3t" not in stderr
        pytest.skip("the server of MAGIK_TEST_DATABASE_URL asks for no password")
    lines = stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == [code for code, _ in STARTS[name].findings], stderr
    for line, (_, word) in zip(lines, STARTS[name].findings, strict=True):
        assert word in line
    assert code == 2
    assert not re.search("s3cr3t|Traceback", stderr)
