"""What Alembic runs for every command on the application's chain."""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import NullPool, create_engine

from examples.settlement.models import Base

url = context.config.attributes.get("url") or os.environ["MAGIK_DATABASE_URL"]

with create_engine(url, poolclass=NullPool).connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        autogenerate_plugins=["alembic.autogenerate.*", "magik_sa"],
    )
    with context.begin_transaction():
        context.run_migrations()
