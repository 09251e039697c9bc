"""``alembic revision --autogenerate`` and ``alembic check`` beside the queue's tables, on Alembic 1.18 and newer."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection, MetaData, NullPool, Table, create_engine, inspect, text

pytest.importorskip("alembic.runtime.plugins", reason="Alembic takes plugins from 1.18 on")

from alembic.autogenerate import compare_metadata, produce_migrations, render_python_code
from alembic.autogenerate.api import AutogenContext
from alembic.migration import MigrationContext
from alembic.operations.ops import MigrationScript
from alembic.runtime import plugins

import magik_sa
from magik_sa import alembic_plugin, migrations
from magik_sa.migrations import autogenerate, installed_version
from tests.tools import asking
from tests.tools.installed import install
from tests.tools.workers import environment

ROOT = Path(__file__).parents[2]
ALL = ["alembic.autogenerate.*", "magik_sa"]

# ---- an application's chain, run as a shell would run it -----------------------------------------------------------

ENV = """
    import os
    import models
    from alembic import context
    from sqlalchemy import create_engine

    with create_engine(os.environ["DATABASE_URL"]).connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=models.metadata,
            autogenerate_plugins=["alembic.autogenerate.*", "magik_sa"],
            include_schemas=bool(os.environ.get("INCLUDE_SCHEMAS")),
        )
        with context.begin_transaction():
            context.run_migrations()
    """

TEMPLATE = """
    import sqlalchemy as sa
    from alembic import op
    ${imports if imports else ""}

    revision, down_revision = ${repr(up_revision)}, ${repr(down_revision)}

    def upgrade():
        ${upgrades if upgrades else "pass"}

    def downgrade():
        ${downgrades if downgrades else "pass"}
    """

MODELS = """
    import sqlalchemy as sa

    own = sa.MetaData()
    sa.Table("orders", own, sa.Column("id", sa.Integer, primary_key=True), sa.Column("job_id", sa.Uuid, index=True))
    sa.Table("magik_orders", own, sa.Column("id", sa.Integer, primary_key=True))
    """

ONE_AFTER_THE_OTHER = "import sys, alembic.config\nfor line in sys.argv[1:]: alembic.config.main(line.split())"


class Project:
    """An application with a chain that is still empty."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.env = environment(url, None, install(folder / "installed") | {"DATABASE_URL": url})
        del self.env["MAGIK_DATABASE_URL"]
        (folder / "migrations" / "versions").mkdir(parents=True)
        ini = "[alembic]\nscript_location = %(here)s/migrations\nprepend_sys_path = .\npath_separator = os\n"
        (folder / "alembic.ini").write_text(ini)
        (folder / "migrations" / "env.py").write_text(dedent(ENV))
        (folder / "migrations" / "script.py.mako").write_text(dedent(TEMPLATE))
        self.models(MODELS, "metadata = own")

    def models(self, *parts: str) -> None:
        (self.folder / "models.py").write_text("\n".join(dedent(part) for part in parts))

    def python(self, *arguments: str, fails: bool = False, fresh: bool = True) -> str:
        command = [sys.executable, "-W", "error", *arguments]
        done = asking.run(command, cwd=self.folder, env=self.env, together=True, fresh=fresh)
        said = done.stdout.decode()
        assert (done.returncode != 0) is fails, said
        return said

    def alembic(self, *lines: str, fails: bool = False) -> str:
        """One command after the other; what they printed."""
        return self.python("-c", ONE_AFTER_THE_OTHER, *lines, fails=fails, fresh=False)

    def revision(self, name: str) -> str:
        (file,) = (self.folder / "migrations" / "versions").glob(f"*_{name}.py")
        return file.read_text()

    def tables(self, schema: str | None = None) -> set[str]:
        return set(inspect(create_engine(self.url, poolclass=NullPool)).get_table_names(schema))


@pytest.fixture
def project(tmp_path: Path, empty_database: str) -> Project:
    return Project(tmp_path, empty_database)


CLEAN = "No new upgrade operations detected"
OURS = {
    "magik_jobs",
    "magik_job_schedules",
    "magik_queues",
    "magik_claims",
    "magik_workers",
    "magik_effects",
    "magik_schema",
}


@pytest.mark.parametrize("schema", [None, "jobs", "public", 'My "jobs" 100%s'])
@pytest.mark.parametrize("include_schemas", ["", "yes"], ids=["one schema", "all schemas"])
@pytest.mark.parametrize("target", ["own", "[magik_sa.metadata, own]"])
def test_the_line_is_written_once_and_the_check_is_clean(
    project: Project, target: str, include_schemas: str, schema: str | None
) -> None:
    project.env |= {"INCLUDE_SCHEMAS": include_schemas} | ({"MAGIK_SCHEMA": schema} if schema else {})
    project.models(MODELS, "import magik_sa", f"metadata = {target}")
    if schema not in (None, "public"):
        execute(project.url, 'CREATE SCHEMA "{}"'.format(schema.replace('"', '""')))
    said = project.alembic(
        "revision --autogenerate -m first",
        "upgrade head",
        "check",
        "revision --autogenerate -m second",
        "upgrade head",
        "downgrade base",
        "upgrade head",
        "check",
    )
    first, second = project.revision("first"), project.revision("second")
    assert first.count("magik_upgrade") == first.count("op.magik_upgrade(version=1)\n") == 1
    assert first.count("magik_downgrade") == first.count("op.magik_downgrade(version=0)\n") == 1
    assert first.count("import magik_sa.migrations") == 1
    assert re.findall(r"create_table\('(\w+)'", first) == ["magik_orders", "orders"]
    assert "magik" not in second
    assert said.count(CLEAN) == 2
    assert "removed table" not in said
    assert project.tables(schema) >= OURS
    assert project.tables() - OURS == {"alembic_version", "orders", "magik_orders"}


def test_a_check_says_what_is_missing(project: Project) -> None:
    assert "('magik_upgrade', 1)" in project.alembic("check", fails=True)


def test_the_line_stands_before_what_refers_to_the_jobs_and_goes_after_it(project: Project) -> None:
    parcels = """
        from sqlalchemy.orm import Mapped, mapped_column
        from magik_sa import Job, metadata

        class Parcel(Job, policy="system"):
            __tablename__ = "parcels"
            id: Mapped[sa.Uuid] = mapped_column(sa.ForeignKey("magik_jobs.id", ondelete="CASCADE"), primary_key=True)

            def perform(self, session): ...
        """
    project.models(MODELS, parcels, "metadata = [metadata, own]")
    said = project.alembic("revision --autogenerate -m first", "upgrade head", "check")
    assert CLEAN in said
    first = project.revision("first")
    assert first.index("magik_upgrade") < first.index("create_table('parcels'")
    assert first.index("drop_table('parcels'") < first.index("magik_downgrade")
    assert project.tables() >= OURS | {"parcels"}
    project.alembic("downgrade base")
    assert project.tables() == {"alembic_version"}


def test_a_template_without_imports_needs_the_import_elsewhere(project: Project) -> None:
    template = project.folder / "migrations" / "script.py.mako"
    template.write_text(template.read_text().replace('${imports if imports else ""}', ""))
    project.alembic("revision --autogenerate -m first")
    assert "import magik_sa" not in project.revision("first")
    assert "no attribute 'magik_upgrade'" in project.alembic("upgrade head", fails=True)
    project.models(MODELS, "import magik_sa.migrations", "metadata = own")
    project.alembic("upgrade head")
    assert project.tables() >= OURS


def test_the_revision_runs_where_no_entry_point_is_found(project: Project) -> None:
    project.alembic("revision --autogenerate -m first")
    project.env["PYTHONPATH"] = str(ROOT)
    project.alembic("upgrade head")
    assert project.tables() >= OURS


@pytest.mark.parametrize("first", ["alembic", "alembic.autogenerate", "magik_sa.migrations", "magik_sa.alembic_plugin"])
def test_whatever_is_imported_first_the_plugin_and_the_verbs_are_there(project: Project, first: str) -> None:
    ask = "import magik_sa.migrations; from alembic import op; from alembic.runtime.plugins import _all_plugins"
    said = project.python("-c", f"import {first}; {ask}; print(op.magik_upgrade.__name__, 'magik_sa' in _all_plugins)")
    assert said.split() == ["magik_upgrade", "True"]


def test_to_import_alembic_loads_hardly_anything_of_ours(project: Project) -> None:
    ask = "print(*sorted(name for name in sys.modules if name.split('.')[0] in ('magik_sa', 'psycopg', 'pydantic')))"
    said = project.python("-c", f"import alembic, sys; {ask}")
    assert said.split() == ["magik_sa", "magik_sa.alembic_plugin"]


@pytest.mark.parametrize("ini", ["alembic.ini", "examples/settlement/alembic.ini"])
def test_the_chains_of_this_repository_are_clean(project: Project, ini: str) -> None:
    project.env["MAGIK_DATABASE_URL"] = project.url
    project.folder = ROOT
    said = project.alembic(f"-c {ini} upgrade head", f"-c {ini} check")
    assert CLEAN in said
    assert "removed" not in said


# ---- the comparison itself -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plugin() -> Iterator[None]:
    """The plugin as its entry point registers it, also where nothing is installed."""
    mine = None
    if "magik_sa" not in plugins._all_plugins:
        plugins.Plugin.setup_plugin_from_module(alembic_plugin, "magik_sa")
        mine = plugins._all_plugins["magik_sa"]
    yield
    if mine is not None:
        mine.remove()


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with create_engine(database, poolclass=NullPool).connect() as connection:
        yield connection


def execute(url: str, *statements: str) -> None:
    with create_engine(url, poolclass=NullPool).begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement.replace("%", "%%"))


def configured(connection: Connection, **opts: Any) -> MigrationContext:
    return MigrationContext.configure(connection, opts={"autogenerate_plugins": ALL, **opts})


def the_package_s() -> MetaData:
    """`magik_sa.metadata` as an application without job tables of its own has it; other tests here declare some."""
    made = MetaData()
    magik_sa.Job.metadata.tables["magik_jobs"].to_metadata(made)
    return made


def names(connection: Connection, metadata: Any = None, **opts: Any) -> list[str]:
    """What is proposed, and for which table or index."""
    diffs = compare_metadata(configured(connection, **opts), MetaData() if metadata is None else metadata)
    return sorted(f"{kind} {getattr(item, 'name', item)}" for kind, item, *_ in diffs)


def test_without_the_plugin_the_tables_would_be_dropped(connection: Connection) -> None:
    proposed = names(connection, autogenerate_plugins=ALL[:1])
    assert {f"remove_table {name}" for name in OURS} <= {*proposed}
    assert "remove_index magik_jobs_claim" in proposed
    left_out = {"include_name": lambda name, kind, _: kind != "table" or not name.startswith("magik_")}
    assert names(connection, autogenerate_plugins=ALL[:1], **left_out) == []


def test_the_model_and_the_migration_agree_for_alembic(connection: Connection, empty_database: str) -> None:
    """No index, column or default is proposed anew after every upgrade, whoever made the table."""
    only = {"include_name": lambda name, kind, _: kind != "table" or name == "magik_jobs"}
    made = the_package_s()
    strict = {"autogenerate_plugins": ALL[:1], "compare_type": True, "compare_server_default": True}
    assert compare_metadata(configured(connection, **only, **strict), made) == []
    with create_engine(empty_database, poolclass=NullPool).begin() as other:
        made.create_all(other)
        assert compare_metadata(configured(other, **only, **strict), made) == []


@pytest.mark.usefixtures("plugin")
def test_tables_of_the_application_are_compared_as_always(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY, gone int)"))
    connection.execute(text("CREATE TABLE magik_orders (id int PRIMARY KEY REFERENCES orders)"))
    connection.execute(text("CREATE INDEX magik_jobs_claims ON orders (gone)"))
    metadata = MetaData()
    Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("added", sa.Integer))
    Table("magik_jobs_log", metadata, sa.Column("id", sa.Integer, primary_key=True))
    proposed = compare_metadata(configured(connection), metadata)
    kinds = sorted(f"{diff[0]} {getattr(diff[1], 'name', None) or getattr(diff[3], 'name', None)}" for diff in proposed)
    assert kinds == [
        "add_column added",
        "add_table magik_jobs_log",
        "remove_column gone",
        "remove_index magik_jobs_claims",
        "remove_table magik_orders",
    ]


@pytest.mark.usefixtures("plugin")
def test_the_filters_of_the_application_still_hold(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY)"))
    connection.execute(text("CREATE TABLE books (id int PRIMARY KEY)"))
    assert names(connection, include_name=lambda name, *_: name != "books") == ["remove_table orders"]
    hidden = names(connection, include_object=lambda _, name, *__: name != "orders")
    assert hidden == ["remove_table books"]


@pytest.mark.usefixtures("plugin")
def test_the_same_names_in_another_schema_are_not_ours(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    connection.execute(text("CREATE SCHEMA shop"))
    connection.execute(text("CREATE TABLE shop.magik_queues (id int PRIMARY KEY)"))
    assert names(connection, include_schemas=True) == ["remove_table magik_queues"]
    monkeypatch.setenv("MAGIK_SCHEMA", "shop")
    found = names(connection, include_schemas=True)
    assert {f"remove_table {name}" for name in OURS} | {"magik_upgrade 1"} <= {*found}


@pytest.mark.usefixtures("plugin")
def test_tables_further_down_the_search_path_are_ours(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(empty_database, "CREATE SCHEMA app", "CREATE SCHEMA jobs", "SET search_path = jobs")
    engine = create_engine(empty_database, poolclass=NullPool, connect_args={"options": "-c search_path=app,jobs"})
    with engine.connect() as connection:
        connection.execute(text("SET LOCAL search_path = jobs"))
        migrations.migrate(connection)
        connection.execute(text("SET LOCAL search_path = app, jobs"))
        for metadata in (MetaData(), the_package_s()):
            assert names(connection, metadata, include_schemas=True) == []


@pytest.mark.usefixtures("plugin")
def test_what_is_proposed_is_struck_whatever_the_filters_did(connection: Connection) -> None:
    """The filters only keep the log quiet; that nothing of ours is touched does not stand on them."""
    connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY)"))
    loud = configured(connection, autogenerate_plugins=ALL[:1])
    ops = produce_migrations(loud, MetaData()).upgrade_ops
    assert ops is not None
    assert len(ops.ops) > len(OURS)
    autogenerate.propose(AutogenContext(loud, MetaData()), ops)
    assert [diff[0] for diff in ops.as_diffs()] == ["remove_table"]


def script(connection: Connection, **opts: Any) -> tuple[str, str]:
    """The bodies of upgrade and downgrade."""
    made: MigrationScript = produce_migrations(configured(connection, **opts), MetaData())
    assert made.upgrade_ops is not None
    assert made.downgrade_ops is not None
    return render_python_code(made.upgrade_ops), render_python_code(made.downgrade_ops)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("head", "up", "down"),
    [
        (1, None, None),
        (2, "op.magik_upgrade(version=2)", "op.magik_downgrade(version=1)"),
        (3, "op.magik_upgrade(version=3, since=1)", "op.magik_downgrade(version=1, since=3)"),
    ],
)
def test_the_line_says_what_a_script_cannot_know(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, head: int, up: str | None, down: str | None
) -> None:
    monkeypatch.setattr(autogenerate, "HEAD", head)
    upgrade, downgrade = script(connection)
    assert [line.strip() for line in upgrade.splitlines() if "magik" in line] == ([up] if up else [])
    assert [line.strip() for line in downgrade.splitlines() if "magik" in line] == ([down] if down else [])


@pytest.mark.usefixtures("plugin")
def test_tables_of_a_newer_release_are_left_alone(connection: Connection) -> None:
    connection.execute(text("UPDATE magik_schema SET version = 99"))
    assert names(connection) == []


@pytest.mark.usefixtures("plugin")
def test_another_database_than_postgres_is_none_of_ours() -> None:
    with create_engine("sqlite://", poolclass=NullPool).connect() as connection:
        assert names(connection) == []


@pytest.mark.usefixtures("plugin")
def test_a_database_without_the_tables_is_behind(empty_database: str) -> None:
    with create_engine(empty_database, poolclass=NullPool).connect() as connection:
        assert installed_version(connection) == 0
        assert names(connection) == ["magik_upgrade 1"]
        assert names(connection, the_package_s()) == ["magik_upgrade 1"]


def test_alembic_may_take_the_entry_point_for_a_module_or_for_modules() -> None:
    """From 1.18.0 to 1.20.0 Alembic iterates over it, from 1.20.1 on it asks whether it is a module."""
    assert isinstance(alembic_plugin, ModuleType)
    loaded: Any = alembic_plugin
    assert [*loaded] == [alembic_plugin]
