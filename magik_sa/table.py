"""The table of jobs: an INSERT into it leaves out what repeats a live job's key, and everything else is plain."""

from __future__ import annotations

from typing import Final

from sqlalchemy import CheckConstraint, Index, Table, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import SchemaItem

JOBS: Final = "magik_jobs"

LIVE: Final = "finished_at IS NULL AND expired_at IS NULL"
KEYED: Final = f"key_digest IS NOT NULL AND {LIVE}"

# As in migrations/, which also has what no Table can say on SQLAlchemy 2.0: fill factor, autovacuum, triggers.
CONSTRAINTS: Final[tuple[SchemaItem, ...]] = (
    CheckConstraint("octet_length(job_class) BETWEEN 1 AND 255", name="magik_jobs_job_class_check"),
    CheckConstraint("octet_length(queue) BETWEEN 1 AND 255", name="magik_jobs_queue_check"),
    CheckConstraint("jsonb_typeof(args) = 'object'", name="magik_jobs_args_check"),
    Index("magik_jobs_claim", "queue", "priority", "run_at", "id", postgresql_where=text(LIVE)),
    Index("magik_jobs_key", "job_class", "key_digest", unique=True, postgresql_where=text(KEYED)),
    Index("magik_jobs_finished", "job_class", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),
    Index("magik_jobs_expired", "expired_at", postgresql_where=text("expired_at IS NOT NULL")),
)


class JobTable(Table):
    """The ORM asks a table for its INSERT. This one's passes over a job whose class and key are live already.

    Nothing else keeps the caller's transaction whole: the unique index alone would break it off, and a look before
    the INSERT would have to guess how other open transactions end.
    """

    inherit_cache = True

    def insert(self) -> postgresql.Insert:
        """``INSERT … ON CONFLICT (job_class, key_digest) WHERE … DO NOTHING``."""
        elements = [self.c.job_class, self.c.key_digest]
        return postgresql.insert(self).on_conflict_do_nothing(index_elements=elements, index_where=text(KEYED))
