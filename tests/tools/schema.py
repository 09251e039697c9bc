"""The queue's tables in a test database."""

from __future__ import annotations

import contextlib

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import NullPool, create_engine


def migrate(url: str) -> None:
    """Bring the database to the newest schema version, as an application's revision does."""
    version = newest()
    if version is None:
        return
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        operations.magik_upgrade(version=version)  # type: ignore[attr-defined]


def newest() -> int | None:
    """The newest schema version of the package."""
    with contextlib.suppress(ImportError):  # not written yet
        from magik_sa.migrations import HEAD

        return HEAD
    return None
