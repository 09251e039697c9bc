"""The locks themselves, given back and, after a lost connection, taken again. The walk and the re-read take them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

import psycopg

from ..ids import Ids
from ..names import Names

UNLOCK = """
SELECT i FROM unnest(%(ids)b::uuid[]) i WHERE NOT pg_advisory_unlock(uuid_hash_extended(i, %(oid)s))"""

UNLOCK_KEYS = "SELECT k FROM unnest(%(keys)s::bigint[]) k WHERE NOT pg_advisory_unlock(k)"

RELOCK = """
SELECT i FROM unnest(%(ids)b::uuid[]) i WHERE pg_try_advisory_lock(uuid_hash_extended(i, %(oid)s))"""

RELOCK_KEYS = "SELECT k FROM unnest(%(keys)s::bigint[]) k WHERE pg_try_advisory_lock(k)"


class LockLost(Exception):
    """A lock that the book says is held was not: the connection is closed and everything taken again."""


class Locks:
    """The locks on jobs and on keys of one locking connection."""

    def __init__(self, connection: psycopg.Connection[Any], names: Names) -> None:
        self._connection, self._names = connection, names

    def unlock(self, ids: Collection[UUID], keys: Collection[int] = ()) -> None:
        """Give locks back; each boolean is looked at. Raises `LockLost` where one was not held."""
        if lost := self._which(UNLOCK, ids=Ids(ids)) | self._which(UNLOCK_KEYS, keys=list(keys)):
            raise LockLost(", ".join(map(str, lost)))

    def take_again(self, ids: Collection[UUID], keys: Collection[int]) -> tuple[set[UUID], set[int]]:
        """Those of them that were free, or ours still."""
        return self._which(RELOCK, ids=Ids(ids)), self._which(RELOCK_KEYS, keys=list(keys))

    def _which(self, statement: str, **locks: list[Any]) -> set[Any]:
        if not any(locks.values()):
            return set()
        values = {**locks, "oid": self._names.oid}
        return {row[0] for row in self._connection.execute(self._names.sql(statement), values, prepare=True)}
