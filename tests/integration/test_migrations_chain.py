"""``alembic upgrade head``: this repository's own chain, and an application's that carries our one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from types import MappingProxyType

import pytest
from sqlalchemy import NullPool, create_engine, inspect, text

from magik_sa.migrations import installed_version
from magik_sa.names import quoted, table
from tests.tools import asking
from tests.tools.dump import apply, dump

ROOT = Path(__file__).parents[2]
NOTHING: Mapping[str, str] = MappingProxyType({})


def alembic(*arguments: str, cwd: Path = ROOT, fails: bool = False, env: Mapping[str, str] = NOTHING) -> str:
    """``python -m alembic …`` as a shell would run it there; what it printed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAGIK")}
    ours = {**inherited, "PYTHONPATH": str(ROOT), **env}
    done = asking.run([sys.executable, "-m", "alembic", *arguments], cwd=cwd, env=ours)
    assert (done.returncode != 0) is fails, done.stderr.decode()
    return (done.stderr if fails else done.stdout).decode()


def version(url: str) -> int:
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return installed_version(connection)


def tables(url: str) -> set[str]:
    return set(inspect(create_engine(url, poolclass=NullPool)).get_table_names())


# ---- this repository's chain ----------------------------------------------------------------------------------------


def test_up_and_down_with_the_url_of_the_environment(empty_database: str) -> None:
    alembic("upgrade", "head", env={"MAGIK_DATABASE_URL": empty_database})
    assert version(empty_database) == 1
    first = dump(empty_database)
    assert "0001 (head)" in alembic("current", env={"MAGIK_DATABASE_URL": empty_database})
    alembic("downgrade", "base", env={"MAGIK_DATABASE_URL": empty_database})
    assert tables(empty_database) == {"alembic_version"}
    alembic("upgrade", "head", env={"MAGIK_DATABASE_URL": empty_database})
    assert dump(empty_database) == first


def test_with_the_url_of_an_x_argument(empty_database: str) -> None:
    alembic("-x", f"url={empty_database}", "upgrade", "head")
    assert version(empty_database) == 1


def test_without_a_url_it_says_what_is_missing() -> None:
    assert "MAGIK_DATABASE_URL_MISSING" in alembic("upgrade", "head", fails=True)


@pytest.mark.parametrize("schema", [None, 'My "jobs": {schema} 100%s'])
def test_the_script_makes_what_the_connection_makes(
    empty_database: str, monkeypatch: pytest.MonkeyPatch, schema: str | None
) -> None:
    env = {"MAGIK_DATABASE_URL": empty_database}
    if schema:
        env["MAGIK_SCHEMA"] = schema
        monkeypatch.setenv("MAGIK_SCHEMA", schema)
        apply(empty_database, f"CREATE SCHEMA {quoted(schema)}")
    nothing = dump(empty_database)
    alembic("upgrade", "head", env=env)
    online = dump(empty_database)
    apply(empty_database, alembic("downgrade", "head:base", "--sql", env=env))
    apply(empty_database, f"DROP TABLE IF EXISTS {table('alembic_version', schema)}")
    assert dump(empty_database) == nothing
    apply(empty_database, alembic("upgrade", "head", "--sql", env=env))
    assert dump(empty_database) == online
    assert version(empty_database) == 1


def test_the_folder_does_not_hide_alembic() -> None:
    assert not (ROOT / "alembic" / "__init__.py").exists()
    command = [sys.executable, "-c", "import alembic, alembic.op; print(alembic.__file__)"]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
    assert not found.startswith(str(ROOT / "alembic"))


# ---- an application's chain -----------------------------------------------------------------------------------------

ENV = """
    import os
    from alembic import context
    from sqlalchemy import create_engine

    with create_engine(os.environ["DATABASE_URL"]).connect() as connection:
        context.configure(connection=connection)
        with context.begin_transaction():
            context.run_migrations()
    """

ORDERS = """
    import sqlalchemy as sa
    from alembic import op

    revision, down_revision = "aaa", None

    def upgrade():
        op.create_table("orders", sa.Column("id", sa.Integer, primary_key=True))

    def downgrade():
        op.drop_table("orders")
    """

JOBS = """
    import magik_sa.migrations
    from alembic import op

    revision, down_revision = "bbb", "aaa"

    def upgrade():
        op.magik_upgrade(version=1)

    def downgrade():
        op.magik_downgrade(version=0)
    """

JOB_OF_AN_ORDER = """
    import sqlalchemy as sa
    from alembic import op

    revision, down_revision = "ccc", "bbb"

    def upgrade():
        op.add_column("orders", sa.Column("job_id", sa.Uuid))
        op.execute("INSERT INTO magik_jobs (job_class) VALUES ('Backfill')")
        op.execute(f"CREATE TABLE bound AS SELECT current_setting('lock_timeout') AS lock_timeout")

    def downgrade():
        op.drop_table("bound")
        op.drop_column("orders", "job_id")
    """


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An application with a chain of its own; ours is one revision in the middle of it."""
    (tmp_path / "migrations" / "versions").mkdir(parents=True)
    (tmp_path / "alembic.ini").write_text("[alembic]\nscript_location = %(here)s/migrations\n")
    (tmp_path / "migrations" / "env.py").write_text(dedent(ENV))
    for name, revision in (("a_orders", ORDERS), ("b_jobs", JOBS), ("c_job_of_an_order", JOB_OF_AN_ORDER)):
        (tmp_path / "migrations" / "versions" / f"{name}.py").write_text(dedent(revision))
    return tmp_path


def test_one_line_in_the_middle_of_a_chain(project: Path, empty_database: str) -> None:
    def run(*arguments: str) -> str:
        return alembic(*arguments, cwd=project, env={"DATABASE_URL": empty_database})

    assert run("heads").split() == ["ccc", "(head)"]
    run("upgrade", "aaa")
    before = dump(empty_database)
    run("upgrade", "head")
    assert version(empty_database) == 1
    with create_engine(empty_database, poolclass=NullPool).connect() as connection:
        assert connection.scalar(text("SELECT job_class FROM magik_jobs")) == "Backfill"
        assert connection.scalar(text("SELECT lock_timeout FROM bound")) == "0"
    run("downgrade", "aaa")
    assert dump(empty_database) == before
    run("upgrade", "head")
    run("downgrade", "base")
    assert tables(empty_database) == {"alembic_version"}


def test_a_revision_that_fails_leaves_nothing_of_the_chain(project: Path, empty_database: str) -> None:
    last = project / "migrations" / "versions" / "c_job_of_an_order.py"
    last.write_text(last.read_text().replace('add_column("orders"', 'add_column("no_such_table"'))
    said = alembic("upgrade", "head", cwd=project, fails=True, env={"DATABASE_URL": empty_database})
    assert 'relation "no_such_table" does not exist' in said
    assert tables(empty_database) == set()
