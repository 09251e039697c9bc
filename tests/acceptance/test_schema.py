"""A schema of the queue's own, and a role that owns that schema and may do nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from magik_sa.harmless import harmless
from tests.tools.asking import told
from tests.tools.server import RUN, Server
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess, dsn_of, environment

ENV = """
import os
from alembic import context
from sqlalchemy import create_engine

with create_engine(os.environ["MAGIK_DATABASE_URL"]).connect() as connection:
    context.configure(connection=connection, version_table_schema=os.environ["CHAIN_SCHEMA"])
    with context.begin_transaction():
        context.run_migrations()
"""
REVISION = """
import magik_sa.migrations
from alembic import op

revision, down_revision = "0001", None

def upgrade():
    op.magik_upgrade(version=1)

def downgrade():
    op.magik_downgrade(version=0)
"""
ENQUEUE = """
import os
from sqlalchemy import create_engine, delete, select
from sqlalchemy.orm import Session
from magik_sa import bulk_enqueue, once
from magik_sa.testing import Clock, enqueued
from tests.jobs.placed import Placed

engine = create_engine(os.environ["MAGIK_DATABASE_URL"])
with Session(engine) as session, session.begin():
    session.add_all([Placed(number=1), Placed(number=2, fails=1), Placed(number=3)])
    session.flush()
    repeat = Placed(number=1)
    session.add(repeat)
    session.flush()
    assert repeat.is_repeat
    assert bulk_enqueue(session, [Placed(number=2), Placed(number=4)]) == 1
    assert (once(session, repeat), once(session, repeat)) == (True, False)
    session.execute(delete(Placed).where(Placed.number == 3))
    assert sorted(session.scalars(select(Placed.number))) == [1, 2, 4]
    Clock(session).move("1s")
    assert len(enqueued(session, Placed)) == 3
"""
OUTSIDE = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relowner = current_user::regrole AND n.nspname NOT IN (%(schema)s, 'pg_toast')
UNION ALL SELECT p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE p.proowner = current_user::regrole AND n.nspname <> %(schema)s
UNION ALL SELECT t.typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
 WHERE t.typowner = current_user::regrole AND n.nspname NOT IN (%(schema)s, 'pg_toast')
UNION ALL SELECT extname FROM pg_extension WHERE extname <> 'plpgsql'
UNION ALL SELECT evtname FROM pg_event_trigger
"""


@dataclass
class Tenant:
    """A role without privileges, the one schema that it owns, and how the package is told of it."""

    url: str
    schema: str
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, *command: str) -> None:
        """Run a program of the application's."""
        env = environment(self.url, None, {**self.env, "CHAIN_SCHEMA": self.schema})
        told([sys.executable, *command], env=env, cwd=self.folder)

    def ask(self, query: str, **values: object) -> list[Any]:
        with psycopg.connect(dsn_of(self.url), autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def role(server: Server, database: str, schema: str, search_path: str | None) -> Iterator[str]:
    """The URL of a role that owns a schema and nothing else."""
    name = f"{RUN}_tenant_{os.urandom(3).hex()}"
    who, where, what = sql.Identifier(name), sql.Identifier(database), sql.Identifier(schema)
    server.execute(sql.SQL("CREATE ROLE {} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD 'tenant'").format(who))
    for statement in (
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
        "CREATE SCHEMA hidden; CREATE TABLE hidden.magik_jobs (id int); CREATE TABLE hidden.magik_schema (version int)",
        "REVOKE ALL ON DATABASE {where} FROM PUBLIC",
        "GRANT CONNECT ON DATABASE {where} TO {who}",
        "CREATE SCHEMA {what} AUTHORIZATION {who}",
    ):
        server.execute(sql.SQL(statement).format(who=who, where=where, what=what), database)
    if search_path:
        server.execute(sql.SQL("ALTER ROLE {} SET search_path = {}").format(who, sql.Identifier(search_path)))
    url = make_url(server.url(database)).set(username=name, password="tenant")
    yield url.render_as_string(hide_password=False)
    server.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(who), database)
    server.execute(sql.SQL("DROP ROLE {}").format(who))


@pytest.fixture(params=["search_path", "MAGIK_SCHEMA", "pyproject", "an odd name"])
def tenant(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Iterator[Tenant]:
    """One tenant for each way to tell the package where its tables are."""
    if not server.superuser:
        pytest.skip("the user of MAGIK_TEST_DATABASE_URL may make no roles")
    schema = 'Jobs :name "100 %s" {jobs}\'; --\n🦄' if request.param == "an odd name" else "jobs"
    env = {"MAGIK_SCHEMA": schema} if request.param in ("MAGIK_SCHEMA", "an odd name") else {}
    if request.param == "pyproject":
        (tmp_path / "pyproject.toml").write_text('[tool.magik_sa]\nschema = "jobs"\n')
    (tmp_path / "chain" / "versions").mkdir(parents=True)
    (tmp_path / "chain" / "env.py").write_text(ENV)
    (tmp_path / "chain" / "versions" / "0001.py").write_text(REVISION)
    (tmp_path / "alembic.ini").write_text("[alembic]\nscript_location = chain\npath_separator = os\n")
    search_path = "jobs" if request.param == "search_path" else None
    with server.created() as database, role(server, database, schema, search_path) as url:
        yield Tenant(url, schema, tmp_path, env)


def test_everything_happens_in_the_one_schema(tenant: Tenant) -> None:
    for command in (["upgrade", "head"], ["downgrade", "base"], ["upgrade", "head"]):
        tenant.run("-m", "alembic", *command)
    place = '"' + tenant.schema.replace('"', '""') + '"'
    tenant.ask(f"CREATE TABLE {place}.notes (number int)")
    if tenant.env or (tenant.folder / "pyproject.toml").exists():  # notes are found by the search_path
        owner = make_url(tenant.url).username
        tenant.ask(f"ALTER ROLE {owner} SET search_path = {place}")
    jobs = f"{place}.magik_jobs"
    with WorkerProcess(
        tenant.url, "tests.jobs.placed", env=tenant.env, cwd=tenant.folder, concurrency=2, poll_interval="30s"
    ) as worker:
        worker.wait_ready()
        tenant.run("-m", "magik_sa.cli", "jobs", "status")
        tenant.run("-m", "magik_sa.cli", "doctor")
        tenant.run("-c", dedent(ENQUEUE))
        until(lambda: tenant.ask(f"SELECT count(*) FROM {jobs}") == [(0,)], timeout=10, what=worker.stderr())
        assert worker.terminate() == 0
    assert tenant.ask(f"SELECT number FROM {place}.notes ORDER BY 1") == [(1,), (2,), (4,)]
    assert tenant.ask(OUTSIDE, schema=tenant.schema) == []


def test_a_schema_without_the_tables_is_told_of(tenant: Tenant) -> None:
    """Also where another schema, which the role may not see, has tables of these names."""
    with WorkerProcess(tenant.url, "tests.jobs.placed", env=tenant.env, cwd=tenant.folder) as worker:
        assert worker.wait() == 2
    named = tenant.schema if tenant.env or (tenant.folder / "pyproject.toml").exists() else "search_path"
    assert "MAGIK_SCHEMA_MISSING" in worker.stderr()
    assert harmless(named) in worker.stderr()
