"""A claim takes the lock of the job, and none of its key."""

from importlib import import_module

from . import replace, without

KEY_FREE = "pg_try_advisory_lock(hashtextextended(j.job_class || encode(j.key_digest, 'hex'), -%(oid)s))"


def take_out() -> None:
    module = import_module("magik_sa.claim.reread")
    replace(module, "REREAD", without(module.REREAD, KEY_FREE, "true"))
