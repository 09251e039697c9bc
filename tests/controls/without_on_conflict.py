"""The INSERT of a job meets the unique index as any other INSERT does."""

from sqlalchemy.dialects import postgresql

from magik_sa.table import JobTable

from . import replace


def take_out() -> None:
    replace(JobTable, "insert", lambda table: postgresql.insert(table))
