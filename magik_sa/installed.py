"""Which version of the tables a database has, and which this release works with.

Apart from the migrations that make them: a worker and a question at the command line need no Alembic.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, text

from .home import located, prefix

HEAD: Final = 1  # the newest of migrations.VERSIONS


def installed_version(connection: Connection) -> int:
    """Which version of the tables this database has; 0 where it has none."""
    table = f"{prefix()}magik_schema"
    if connection.scalar(text("SELECT to_regclass(:table)"), {"table": table}) is None:
        return 0
    return connection.scalar(text(located("SELECT version FROM {schema}magik_schema"))) or 0
