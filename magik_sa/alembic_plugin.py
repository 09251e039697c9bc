"""The package as a plugin of Alembic's (1.18 and newer), found through the entry point ``alembic.plugins``.

An env.py that says ``autogenerate_plugins=["alembic.autogenerate.*", "magik_sa"]`` gets the line that installs or
upgrades the tables written by ``alembic revision --autogenerate``.

Alembic loads this module whenever it is imported, in the middle of its own imports: nothing slow may happen here,
nothing that can fail, and hardly anything of Alembic's is there yet. So `op` does not get its two verbs here; the
revision imports `magik_sa.migrations` for them, which also serves an Alembic without plugins.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alembic.autogenerate.api import AutogenContext
    from alembic.operations.ops import UpgradeOps
    from alembic.runtime.plugins import Plugin
    from alembic.util import PriorityDispatchResult


class _ModuleOrModules(ModuleType):
    """A module to Alembic from 1.20.1 on; before, Alembic iterates over what an entry point names, and a plain module
    would end every ``import alembic`` with a TypeError.
    """

    def __iter__(self) -> Iterator[ModuleType]:
        yield self


sys.modules[__name__].__class__ = _ModuleOrModules


def setup(plugin: Plugin) -> None:
    """Take part in the comparison of every PostgreSQL database: first to look away, last to add our line."""
    from alembic.util import DispatchPriority

    for comparator, priority in ((_first, DispatchPriority.FIRST), (_last, DispatchPriority.LAST)):
        plugin.add_autogenerate_comparator(comparator, "autogenerate", qualifier="postgresql", priority=priority)


def _first(context: AutogenContext, upgrade_ops: UpgradeOps) -> PriorityDispatchResult:
    from .migrations import autogenerate

    return autogenerate.hide(context, upgrade_ops)


def _last(context: AutogenContext, upgrade_ops: UpgradeOps) -> PriorityDispatchResult:
    from .migrations import autogenerate

    return autogenerate.propose(context, upgrade_ops)
