"""What is noted of a claimed job is looked up in a join, as the planner sees fit."""

from importlib import import_module

from . import replace, without

ALONE = "LATERAL (SELECT * FROM {claims} WHERE job_id = j.id OFFSET 0) old ON true"
JOINED = "{claims} old ON job_id = j.id"


def take_out() -> None:
    module = import_module("magik_sa.claim.reread")
    replace(module, "REREAD", without(module.REREAD, ALONE, JOINED))
