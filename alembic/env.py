"""What Alembic runs for every command; this folder must not become a package, or it would shadow Alembic's own."""

from __future__ import annotations

import os
from logging.config import fileConfig

from alembic import context
from sqlalchemy import NullPool, create_engine

from magik_sa import metadata
from magik_sa.errors import MagikError
from magik_sa.settings import schema

if context.config.config_file_name is not None:
    fileConfig(context.config.config_file_name, disable_existing_loggers=False)

url = (
    context.get_x_argument(as_dictionary=True).get("url")
    or os.environ.get("MAGIK_DATABASE_URL")
    or context.config.get_main_option("sqlalchemy.url")
)


def print_script() -> None:
    """``--sql``: print what would be run; no database is asked."""
    context.configure(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},  # else a % in a name is doubled, as for a driver
        literal_binds=True,
        version_table_schema=schema(),
    )
    with context.begin_transaction():
        context.run_migrations()


def migrate() -> None:
    """Run the revisions in one transaction."""
    if not url:
        raise MagikError("MAGIK_DATABASE_URL_MISSING", "No database is named.")
    with create_engine(url, poolclass=NullPool).connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=metadata,
            autogenerate_plugins=["alembic.autogenerate.*", "magik_sa"],
            version_table_schema=schema(),
        )
        with context.begin_transaction():
            context.run_migrations()


if context.is_offline_mode():
    print_script()
else:
    migrate()
