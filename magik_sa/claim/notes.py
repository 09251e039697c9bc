"""The notes beside the locks: who has a job, and whether its run has begun. Each statement names its owner."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

import psycopg

from ..ids import Ids
from ..names import Names
from .claimed import Owner

BEGUN = """
UPDATE {claims} SET begun = true
 WHERE job_id = ANY(%(ids)b::uuid[]) AND backend_pid = %(pid)s AND backend_start = %(start)s AND NOT begun"""

# Its owner in the WHERE: a late delete never takes the note of who has the job now.
FORGET = """
DELETE FROM {claims} WHERE job_id = ANY(%(ids)b::uuid[]) AND backend_pid = %(pid)s AND backend_start = %(start)s"""

# Given back before it started: a suspect stays one, and is not taken for a run that had begun.
NOT_BEGUN = """
UPDATE {claims} SET begun = false
 WHERE job_id = ANY(%(ids)b::uuid[]) AND backend_pid = %(pid)s AND backend_start = %(start)s"""

# After a lost connection, unless another worker wrote its own there meanwhile.
TAKE_OVER = """
UPDATE {claims} SET backend_pid = %(pid)s, backend_start = %(start)s
 WHERE job_id = ANY(%(ids)b::uuid[]) AND backend_pid = %(old_pid)s AND backend_start = %(old_start)s
RETURNING job_id"""

# A crash of the server has emptied the table: a note that is nobody's is written anew, another worker's is left alone.
WRITE_AGAIN = """
INSERT INTO {claims} (job_id, worker, backend_pid, backend_start, begun)
SELECT i, %(worker)s, %(pid)s, %(start)s, true FROM unnest(%(ids)b::uuid[]) i
    ON CONFLICT (job_id) DO NOTHING
RETURNING job_id"""


class Notes:
    """The notes of one owner: `reread` writes them with the claim, here they change and go."""

    def __init__(self, connection: psycopg.Connection[Any], names: Names, owner: Owner) -> None:
        self._connection, self._names = connection, names
        self._owner = {"pid": owner[0], "start": owner[1]}

    def begun(self, ids: Collection[UUID]) -> None:
        """Say that these runs have begun, so that a death counts as one of their tries."""
        self._run(BEGUN, ids)

    def not_begun(self, ids: Collection[UUID]) -> None:
        """Say that these have not."""
        self._run(NOT_BEGUN, ids)

    def forget(self, ids: Collection[UUID]) -> None:
        """Delete the notes of these jobs, where they are this owner's own."""
        self._run(FORGET, ids)

    def take_over(self, ids: Collection[UUID], before: Owner) -> set[UUID]:
        """Make notes of a session before this owner's; whose they are now."""
        cursor = self._run(TAKE_OVER, ids, old_pid=before[0], old_start=before[1])
        return {row[0] for row in cursor or ()}

    def write_again(self, ids: Collection[UUID], worker: str) -> set[UUID]:
        """Note runs of which there is no note any more; which of them that were."""
        cursor = self._run(WRITE_AGAIN, ids, worker=worker)
        return {row[0] for row in cursor or ()}

    def _run(self, statement: str, ids: Collection[UUID], **values: Any) -> psycopg.Cursor[Any] | None:
        if not ids:
            return None
        values |= {"ids": Ids(ids), **self._owner}
        return self._connection.execute(self._names.sql(statement), values, prepare=True)
