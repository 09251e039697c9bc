"""``magik migrate``: the tables without an Alembic chain of one's own.

It may be run at every deployment, and by several at once: one does it, the others wait and find it done.
"""

from __future__ import annotations

import io
from typing import Final

import click
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from ..errors import BootError, MagikError
from ..failure import first_line, sqlstate
from ..harmless import harmless
from ..locked import TRY_ALONE, is_locked, tables_locked
from ..migrations import HEAD, MagikDowngrade, MagikUpgrade, migrate
from ..settings import schema
from .connect import URL, connected
from .output import Answer, Command, note

UNDER_PRIVILEGED: Final = ("42501", "3F000")  # insufficient_privilege, invalid_schema_name


@click.command("migrate", cls=Command)
@click.option(
    "--version", type=int, default=HEAD, show_default=True, help="the version to bring the tables to; 0: none"
)
@click.option("--sql", is_flag=True, help="print a script instead; no database is asked")
@click.option("--since", type=int, default=0, show_default=True, help="with --sql: the version that is installed")
@click.option("--yes", is_flag=True, help="go down to an older version too; 0 removes every job")
@URL
def command(version: int, sql: bool, since: int, yes: bool, database_url: str | None) -> Answer:
    """Make or upgrade the tables. Changes nothing where they are as they should be."""
    if sql:
        script = written(version, since)
        return Answer(script, {"from": since, "to": version, "sql": script})
    with connected(database_url, "migrate") as connection:
        before = run(connection, version, downgrade=yes)
    return Answer(_told(before, version), {"from": before, "to": version, "changed": before != version})


def run(connection: Connection, version: int, *, downgrade: bool) -> int:
    """All of it in one transaction, or nothing. Returns the version before."""
    try:
        with connection.begin():
            if not connection.scalar(text(TRY_ALONE)):
                note("another migration is under way here; waiting for it.")
            return migrate(connection, version, downgrade=downgrade)
    except DBAPIError as error:
        raise _coded(connection, error) from error


def written(version: int, since: int) -> str:
    """The statements of an upgrade or a downgrade as a script for psql."""
    script = io.StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},  # else a % in a name is doubled, as for a driver
        opts={"as_sql": True, "literal_binds": True, "output_buffer": script},
    )
    with context.begin_transaction():
        step = MagikUpgrade(version, since) if version >= since else MagikDowngrade(version, since)
        Operations(context).invoke(step)
    return script.getvalue().strip()


def _told(before: int, after: int) -> str:
    where = harmless(f"schema {schema()}" if schema() else "the search_path")
    if before == after:
        return f"Nothing to do: the tables in {where} are of version {after}."
    return f"The tables in {where} went from version {before} to {after}."


def _coded(connection: Connection, error: DBAPIError) -> MagikError:
    """What the server refused, in our words; nothing was changed."""
    if error.connection_invalidated:
        return BootError("MAGIK_DATABASE_UNREACHABLE", f"The connection was lost: {first_line(error)}.")
    if is_locked(error):
        return tables_locked(connection)
    fault = f"The server refused, and nothing was changed: {first_line(error)}."
    if sqlstate(error) in UNDER_PRIVILEGED:
        where = f"schema {schema()}" if schema() else "a schema on the role's search_path"
        remedy = f"Make {where}, owned by the role that migrates, or name another one in MAGIK_SCHEMA."
        return BootError("MAGIK_MIGRATION_REFUSED", fault, field="schema", remedy=remedy)
    return BootError("MAGIK_MIGRATION_REFUSED", fault)
