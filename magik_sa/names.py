"""What the worker's own SQL calls the package's objects on one server.

Tables are found through the configured schema, or the search_path; lock keys and the channel are made from
the oid of the job table, so that two installations in one database, or an application's own advisory locks,
never meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from .errors import BootError

MAINTENANCE: Final = "magik_sa.maintenance"  # the class of those rows of schedules that are none of the application's


def quoted(name: str) -> str:
    """An identifier as SQL reads it literally."""
    return '"' + name.replace('"', '""') + '"'


def table(name: str, schema: str | None) -> str:
    """A table of the package, with its schema where one is configured."""
    return f"{quoted(schema)}.{name}" if schema else name


@dataclass(frozen=True)
class Names:
    """The tables, the `oid` that salts every key, and the NOTIFY `channel`."""

    jobs: str
    claims: str
    workers: str
    queues: str
    oid: int

    @property
    def channel(self) -> str:
        return f"magik_{self.oid}"

    def sql(self, text: str) -> bytes:
        """Fill the table names into a statement. Values travel as parameters, of which a % is the sign."""
        names = {"jobs": self.jobs, "claims": self.claims, "workers": self.workers, "queues": self.queues}
        return text.format(**{key: name.replace("%", "%%") for key, name in names.items()}).encode()


def find(connection: psycopg.Connection[Any], schema: str | None) -> Names:
    """Look the tables up. Raises `BootError` ``MAGIK_SCHEMA_MISSING`` where there is no job table."""
    tables = ("magik_jobs", "magik_claims", "magik_workers", "magik_queues")
    jobs, claims, workers, queues = (table(name, schema) for name in tables)
    found = connection.execute("SELECT to_regclass(%s)::oid::bigint", (jobs,)).fetchone()
    if found is None or found[0] is None:
        raise BootError("MAGIK_SCHEMA_MISSING", f"There is no table {jobs} in this database.")
    return Names(jobs, claims, workers, queues, int(found[0]))
