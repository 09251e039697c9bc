"""The tables' versions, and how an application's own Alembic chain installs them.

A revision imports this package and says one line; the chain stays the application's, with one head::

    import magik_sa.migrations


    def upgrade():
        op.magik_upgrade(version=1)


    def downgrade():
        op.magik_downgrade(version=0)

Where revisions are checked for their types, ``op.invoke(MagikUpgrade(version=1))`` says the same: no checker can know
the verbs that `op` is given while a program runs.

The schema itself is never made nor dropped here: a role that owns one schema and nothing else can run this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

from alembic.migration import MigrationContext
from alembic.operations import MigrateOperation, Operations
from sqlalchemy import Connection

from ..errors import MagikError
from ..home import located
from ..installed import HEAD, installed_version
from ..locked import ALONE, BOUND, UNBOUND
from . import v001
from .parts import refuse_half

__all__ = ["HEAD", "VERSIONS", "MagikDowngrade", "MagikUpgrade", "installed_version", "migrate"]

VERSIONS: Final[dict[int, ModuleType]] = {1: v001}

RECORD: Final = """
INSERT INTO {schema}magik_schema (version) VALUES ({version})
    ON CONFLICT (only_row) DO UPDATE SET version = excluded.version"""


@Operations.register_operation("magik_upgrade")
class MagikUpgrade(MigrateOperation):
    """``op.magik_upgrade(version=1)``: bring the tables up to `version`; nothing to do where they are.

    A script (``--sql``) cannot ask what is installed: it takes it to be `since`, by default the version before.
    """

    def __init__(self, version: int, since: int | None = None) -> None:
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

    def to_diff_tuple(self) -> tuple[str, int]:
        """What ``alembic check`` shows of it."""
        return ("magik_upgrade", self.version)


@Operations.register_operation("magik_downgrade")
class MagikDowngrade(MigrateOperation):
    """``op.magik_downgrade(version=0)``: bring the tables down to `version`, 0 being none.

    A script (``--sql``) cannot ask what is installed: it takes it to be `since`, by default the version after.
    """

    def __init__(self, version: int, since: int | None = None) -> None:
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

    def to_diff_tuple(self) -> tuple[str, int]:
        """What ``alembic check`` shows of it."""
        return ("magik_downgrade", self.version)


@Operations.implementation_for(MagikUpgrade)
def _upgrade(op: Operations, wanted: MagikUpgrade) -> None:
    _check(wanted.version)
    with _alone(op):
        _up(op, _present(op, wanted.since, wanted.version - 1), wanted.version)


@Operations.implementation_for(MagikDowngrade)
def _downgrade(op: Operations, wanted: MagikDowngrade) -> None:
    _check(wanted.version)
    with _alone(op):
        _down(op, _present(op, wanted.since, wanted.version + 1), wanted.version)


def migrate(connection: Connection, version: int = HEAD, *, downgrade: bool = True) -> int:
    """Bring the tables up or down to `version` without an Alembic chain, in the caller's transaction.

    Returns the version that was there before. With ``downgrade=False`` only up: ``MAGIK_DOWNGRADE_UNCONFIRMED``.
    """
    _check(version)
    op = Operations(MigrationContext.configure(connection))
    with _alone(op):
        present = _present(op, None, 0)
        if version < present and not downgrade:
            raise MagikError("MAGIK_DOWNGRADE_UNCONFIRMED", _loss(present, version))
        _up(op, present, version)
        _down(op, present, version)
    return present


def _check(version: int) -> None:
    """Refuse a version that this release does not know, before anything is changed."""
    if version not in (0, *VERSIONS):
        remedy = f"This release knows the versions 0 to {HEAD}; install the one that the revision was written for."
        raise MagikError("MAGIK_SCHEMA_AHEAD", f"There is no version {version!r}.", field="version", remedy=remedy)


def _loss(present: int, version: int) -> str:
    lost = "removes the tables with every job in them" if version == 0 else "removes what newer code relies on"
    return f"Version {present} is installed; going down to {version} {lost}."


@contextmanager
def _alone(op: Operations) -> Iterator[None]:
    """Nobody else migrates meanwhile, and no lock is waited for without a bound."""
    op.execute(BOUND)
    op.execute(ALONE)
    yield
    op.execute(UNBOUND)


def _present(op: Operations, since: int | None, usual: int) -> int:
    """What is installed: asked of the database, or taken from the revision where a script is written."""
    if op.migration_context.as_sql:
        return usual if since is None else since
    connection = op.get_bind()
    present = installed_version(connection)
    _check(present)
    refuse_half(connection, VERSIONS.get(present), VERSIONS[HEAD])
    return present


def _up(op: Operations, present: int, wanted: int) -> None:
    """One step after the other; none where the tables are at `wanted` or beyond."""
    for version in range(present + 1, wanted + 1):
        VERSIONS[version].upgrade(op)
        op.execute(located(RECORD, version=str(version)))


def _down(op: Operations, present: int, wanted: int) -> None:
    """One step after the other; none where the tables are at `wanted` or before."""
    for version in range(present, wanted, -1):
        VERSIONS[version].downgrade(op)
        if version > 1:
            op.execute(located(RECORD, version=str(version - 1)))
