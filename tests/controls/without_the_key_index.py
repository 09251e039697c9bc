"""Nothing in the database keeps a second live job of a key out; who adds one looks first whether there is one."""

from sqlalchemy.dialects import postgresql

from magik_sa.table import JobTable

from . import replace

SQL = "DROP INDEX magik_jobs_key"


def take_out() -> None:
    replace(JobTable, "insert", lambda table: postgresql.insert(table))
