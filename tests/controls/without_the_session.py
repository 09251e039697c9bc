"""A claim is a row that says so, and not a lock of the worker's session."""

from magik_sa.claim import locks, walk

from . import without

LOCK = "pg_try_advisory_lock(uuid_hash_extended(id, %(oid)s))"
NOTE = "NOT EXISTS (SELECT FROM {claims} n WHERE n.job_id = c.id)"


def take_out() -> None:
    walk.WALK = without(walk.WALK, LOCK, NOTE)
    locks.UNLOCK = "SELECT i FROM unnest(%(ids)b::uuid[]) i WHERE false"
