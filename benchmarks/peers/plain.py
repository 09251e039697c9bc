"""No queue: the ORM inserts a row with the columns, indexes and checks of a job's, into a table without triggers."""

from __future__ import annotations

from typing import Any

import psycopg
from sqlalchemy.orm import Session

from benchmarks.peers.ours import MagikSA
from benchmarks.tables import MAKE_PLAIN, PlainRow


class Plain(MagikSA):
    """What enqueueing by `session.add` is compared with."""

    settings = {"enqueue": "session.add(row), commit"}
    left = "SELECT count(*) FROM plain_rows"

    async def setup(self, dsn: str) -> None:
        await super().setup(dsn)
        with psycopg.connect(dsn) as connection:
            connection.execute(MAKE_PLAIN)

    async def one(self, kind: str, seq: int) -> None:
        row: dict[str, Any] = {"queue": "default", "priority": 100, "args": {"seq": seq}, "version": 1}
        with Session(self.engine) as session:
            session.add(PlainRow(job_class=kind, error_count=0, **row))
            session.commit()


PEER = Plain()
