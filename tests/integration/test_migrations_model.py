"""The job table that the migration makes, and the one that the model describes, are the same."""

from __future__ import annotations

import re

from sqlalchemy import NullPool, create_engine

from magik_sa.job import Job
from tests.tools.dump import dump


def test_the_model_describes_what_the_migration_makes(database: str, empty_database: str) -> None:
    Job.metadata.create_all(create_engine(empty_database, poolclass=NullPool), tables=[Job.__table__])
    assert described(database) == described(empty_database)


def described(url: str) -> list[str]:
    """Columns, defaults, checks and indexes; how rows are stored and who is woken is the migration's alone."""
    text = dump(url, "--table=magik_jobs", "--no-owner")
    text = re.sub(r"\nWITH \(.*?\);", ";", text)
    text = re.sub(r"CREATE TRIGGER .*;", "", text)
    return [line.rstrip(";") for line in text.splitlines() if line.strip() not in ("", ";")]
