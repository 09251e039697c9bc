"""What ``alembic revision --autogenerate`` and ``alembic check`` make of the tables, where env.py names the plugin.

The tables are compared by their version and by nothing else: a model cannot say all of them (triggers, functions, how
rows are stored), and what is not in it Alembic would drop.
"""

from __future__ import annotations

from typing import Any, Final

from alembic.autogenerate import renderers
from alembic.autogenerate.api import AutogenContext
from alembic.operations.ops import MigrateOperation, UpgradeOps
from alembic.util import PriorityDispatchResult
from sqlalchemy import Connection, text

from ..settings import schema
from . import HEAD, VERSIONS, MagikDowngrade, MagikUpgrade, installed_version

TABLES: Final = frozenset(name for version in VERSIONS.values() for name in version.PARTS["table"])
IMPORT: Final = "import magik_sa.migrations  # noqa: F401"

# Without a configured schema the tables may stand in any schema of the search_path.
HOME: Final = """
SELECT nspname FROM pg_namespace JOIN pg_class ON relnamespace = pg_namespace.oid
 WHERE pg_class.oid = to_regclass('magik_jobs')"""


class Home:
    """Tells the queue's tables from an application's, by their exact names and where they stand."""

    def __init__(self, connection: Connection) -> None:
        self._default = connection.dialect.default_schema_name
        name = schema()
        self._schemas = {self._key(name)} if name else {None, self._key(connection.scalar(text(HOME)))}

    def has(self, schema: str | None, table: str | None) -> bool:
        """Whether this is one of ours."""
        return table in TABLES and self._key(schema) in self._schemas

    def _key(self, schema: str | None) -> str | None:
        """Alembic calls the default schema None where it reads a database, and by its name where a model does."""
        return None if schema == self._default else schema


def hide(context: AutogenContext, _: UpgradeOps) -> PriorityDispatchResult:
    """Keep the tables out of the comparison, so that the log has no "Detected removed table" to frighten with.

    Alembic has no door for a plugin's filter. Should this list go away, only the quiet goes with it. They are read all
    the same: Alembic 1.18 cannot compare a table that refers to one whose name was left out.
    """
    home = Home(_connection(context))
    filters: list[Any] = getattr(context, "_object_filters", [])
    filters.append(lambda item, name, kind, *_: kind != "table" or not home.has(item.schema, name))
    return PriorityDispatchResult.CONTINUE


def propose(context: AutogenContext, upgrade_ops: UpgradeOps) -> PriorityDispatchResult:
    """Strike whatever would touch the tables, and put the upgrade first where they are behind.

    First, so that a table of the application's that refers to them finds them, and goes before they do.
    """
    connection = _connection(context)
    home = Home(connection)
    upgrade_ops.ops[:] = [op for op in upgrade_ops.ops if not _touches(home, op)]
    present = installed_version(connection)
    if present < HEAD:
        upgrade_ops.ops.insert(0, MagikUpgrade(HEAD, present))
    return PriorityDispatchResult.CONTINUE


def _touches(home: Home, op: MigrateOperation) -> bool:
    """Every operation of Alembic's on a table or an index says which table it is about."""
    return home.has(getattr(op, "schema", None), getattr(op, "table_name", None))


def _connection(context: AutogenContext) -> Connection:
    assert context.connection is not None, "there is no comparison without a database"
    return context.connection


@renderers.dispatch_for(MagikUpgrade)
def _upgrade(context: AutogenContext, op: MagikUpgrade) -> str:
    return _call(context, "magik_upgrade", op.version, op.since, op.version - 1)


@renderers.dispatch_for(MagikDowngrade)
def _downgrade(context: AutogenContext, op: MagikDowngrade) -> str:
    return _call(context, "magik_downgrade", op.version, op.since, op.version + 1)


def _call(context: AutogenContext, verb: str, version: int, since: int | None, usual: int) -> str:
    """The line, with `since` where a script (``--sql``) would guess it wrong."""
    context.imports.add(IMPORT)
    told = "" if since in (None, usual) else f", since={since}"
    return f"{context.opts.get('alembic_module_prefix') or ''}{verb}(version={version}{told})"
