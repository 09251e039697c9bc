"""The end of jobs that wrote nothing: many rows in one commit, on a connection in autocommit.

Each is named with the version that its run was given, as everywhere: a row that was moved, cancelled or taken over
meanwhile stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from .ids import Ids
from .names import Names
from .version import LAST

# A row that is locked by somebody is passed over, so that it holds up no other. = ANY(ARRAY(…)) and no join: planned
# while the table was empty a join reads the whole table for each row, and does so until the next autovacuum.
_MINE = """
 WHERE id = ANY(ARRAY(
  SELECT id FROM {jobs} WHERE id = ANY(%(ids)b::uuid[]) AND version = %(version)s FOR UPDATE SKIP LOCKED))
RETURNING id"""

DELETE = "DELETE FROM {jobs}"

KEEP = f"""
UPDATE {{jobs}} SET finished_at = statement_timestamp(),
       version = CASE WHEN version = {LAST} THEN 1 ELSE version + 1 END"""

COMPLETE = {False: DELETE + _MINE, True: KEEP + _MINE}  # by whether the class keeps its rows

# What is left of them: whether it could be locked, so that nobody else has it, and whether it went then. A row that a
# BEFORE trigger, a rule or a policy keeps is locked and stays; what is not named any more has another version, or none.
_LEFT = """
WITH mine AS MATERIALIZED (
  SELECT id FROM {jobs} WHERE id = ANY(%(ids)b::uuid[]) AND version = %(version)s FOR UPDATE SKIP LOCKED
), gone AS ({end} WHERE id = ANY(ARRAY(SELECT id FROM mine)) RETURNING id)
SELECT id, id = ANY(ARRAY(SELECT id FROM mine)), id = ANY(ARRAY(SELECT id FROM gone))
  FROM {jobs} WHERE id = ANY(%(ids)b::uuid[]) AND version = %(version)s"""
COMPLETE_LEFT = {False: _LEFT.replace("{end}", DELETE), True: _LEFT.replace("{end}", KEEP)}


class Left(NamedTuple):
    """What has the version still, and was not ended at the first try."""

    locked: set[UUID]  # by somebody
    gone: set[UUID]  # at this one
    kept: set[UUID]  # the server does not let these go, and says nothing


def complete(
    connection: psycopg.Connection[Any], names: Names, ids: Collection[UUID], version: int, *, keep: bool
) -> set[UUID]:
    """End those of these rows that have this version and that nobody has locked; which they were."""
    rows = _rows(connection, names, COMPLETE[keep], ids, version)
    return {id for (id,) in rows}


def complete_left(
    connection: psycopg.Connection[Any], names: Names, ids: Collection[UUID], version: int, *, keep: bool
) -> Left:
    """The same once more, for those that `complete` did not end."""
    rows = _rows(connection, names, COMPLETE_LEFT[keep], ids, version)
    return Left(
        {id for id, ours, _ in rows if not ours},
        {id for id, _, gone in rows if gone},
        {id for id, ours, gone in rows if ours and not gone},
    )


def _rows(
    connection: psycopg.Connection[Any], names: Names, statement: str, ids: Collection[UUID], version: int
) -> list[Any]:
    values = {"ids": Ids(ids), "version": version}
    return connection.execute(names.sql(statement), values, prepare=True).fetchall()
