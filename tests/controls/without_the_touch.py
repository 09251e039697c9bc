"""A claim takes rows that are in somebody's open transaction, too."""

from importlib import import_module

from . import replace, without, work

OPEN = "NOT EXISTS (SELECT FROM open WHERE open.transactionid = j.xmax)"


def take_out() -> None:
    module = import_module("magik_sa.claim.reread")
    replace(module, "REREAD", without(module.REREAD, OPEN, "true"))


if __name__ == "__main__":
    take_out()
    work()
