"""The tables' versions, and how an application's own Alembic chain installs them.

A revision imports this package and says one line; the chain stays the application's, with one head::

    import magik_sa.migrations


    def upgrade():
        op.magik_upgrade(version=1)


    def downgrade():
        op.magik_downgrade(version=0)

The schema itself is never made nor dropped here: a role that owns one schema and nothing else can run this.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

from alembic.migration import MigrationContext
from alembic.operations import MigrateOperation, Operations
from sqlalchemy import Connection, text

from ..errors import MagikError
from . import v001
from .place import located, prefix

VERSIONS: Final[dict[int, ModuleType]] = {1: v001}
HEAD: Final = max(VERSIONS)

# A lock that is not free holds up every enqueue that queues behind the one who waits for it, so the wait has a bound.
# One that the application has set already is its own business. The bound is put back at the end, as the chain's next
# revisions may run in the same transaction; what it was before is kept in a setting, because a script (--sql) has
# nowhere else to keep it.
BOUND: Final = """
SELECT set_config('magik_sa.lock_timeout', current_setting('lock_timeout'), true),
       set_config('lock_timeout', CASE current_setting('lock_timeout') WHEN '0' THEN '5s'
                                  ELSE current_setting('lock_timeout') END, true)"""
UNBOUND: Final = """
SELECT set_config('lock_timeout', coalesce(nullif(current_setting('magik_sa.lock_timeout', true), ''), '0'), true)"""

# Two at once: one does it, the other waits (not longer than the bound) and finds it done.
ALONE: Final = "SELECT pg_advisory_xact_lock(hashtext('magik_sa.migrations'))"

RECORD: Final = """
INSERT INTO {schema}magik_schema (version) VALUES ({version})
    ON CONFLICT (only_row) DO UPDATE SET version = excluded.version"""


@Operations.register_operation("magik_upgrade")
class MagikUpgrade(MigrateOperation):
    """``op.magik_upgrade(version=1)``: bring the tables up to `version`; nothing to do where they are."""

    def __init__(self, version: int, since: int | None) -> None:
        self.version, self.since = version, since

    @classmethod
    def magik_upgrade(cls, operations: Operations, version: int, *, since: int | None = None) -> None:
        """Bring magik_sa's tables up to `version`.

        A script (``--sql``) cannot ask what is installed: it takes it to be `since`, by default the version before.
        """
        operations.invoke(cls(version, since))

    def reverse(self) -> MagikDowngrade:
        """Back to where this began."""
        return MagikDowngrade(self.version - 1 if self.since is None else self.since, self.version)


@Operations.register_operation("magik_downgrade")
class MagikDowngrade(MigrateOperation):
    """``op.magik_downgrade(version=0)``: bring the tables down to `version`, 0 being none."""

    def __init__(self, version: int, since: int | None) -> None:
        self.version, self.since = version, since

    @classmethod
    def magik_downgrade(cls, operations: Operations, version: int, *, since: int | None = None) -> None:
        """Bring magik_sa's tables down to `version`; 0 removes them with every job in them.

        A script (``--sql``) cannot ask what is installed: it takes it to be `since`, by default the version after.
        """
        operations.invoke(cls(version, since))

    def reverse(self) -> MagikUpgrade:
        """Up again to where this began."""
        return MagikUpgrade(self.version + 1 if self.since is None else self.since, self.version)


@Operations.implementation_for(MagikUpgrade)
def _upgrade(op: Operations, wanted: MagikUpgrade) -> None:
    _check(wanted.version)
    _begin(op)
    for version in range(_present(op, wanted, wanted.version - 1) + 1, wanted.version + 1):
        VERSIONS[version].upgrade(op)
        op.execute(located(RECORD, version=str(version)))
    op.execute(UNBOUND)


@Operations.implementation_for(MagikDowngrade)
def _downgrade(op: Operations, wanted: MagikDowngrade) -> None:
    _check(wanted.version)
    _begin(op)
    for version in range(_present(op, wanted, wanted.version + 1), wanted.version, -1):
        VERSIONS[version].downgrade(op)
        if version > 1:
            op.execute(located(RECORD, version=str(version - 1)))
    op.execute(UNBOUND)


def migrate(connection: Connection, version: int = HEAD) -> None:
    """Bring the tables up or down to `version` without an Alembic chain, in the caller's transaction."""
    op = Operations(MigrationContext.configure(connection))
    present = installed_version(connection)
    op.invoke(MagikUpgrade(version, present) if version >= present else MagikDowngrade(version, present))


def installed_version(connection: Connection) -> int:
    """Which version of the tables this database has; 0 where it has none."""
    table = f"{prefix()}magik_schema"
    if connection.scalar(text("SELECT to_regclass(:table)"), {"table": table}) is None:
        return 0
    return connection.scalar(text(located("SELECT version FROM {schema}magik_schema"))) or 0


def _check(version: int) -> None:
    """Refuse a version that this release does not know, before anything is changed."""
    if version not in (0, *VERSIONS):
        remedy = f"This release knows the versions 0 to {HEAD}; install the one that the revision was written for."
        raise MagikError("MAGIK_SCHEMA_AHEAD", f"There is no version {version!r}.", field="version", remedy=remedy)


def _begin(op: Operations) -> None:
    op.execute(BOUND)
    op.execute(ALONE)


def _present(op: Operations, wanted: MagikUpgrade | MagikDowngrade, before: int) -> int:
    """What is installed: asked of the database, or taken from the revision where a script is written."""
    if op.migration_context.as_sql:
        return before if wanted.since is None else wanted.since
    present = installed_version(op.get_bind())
    _check(present)
    return present
