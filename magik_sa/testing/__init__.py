"""What an application's tests need: which jobs were added, one job performed, all that is due run here, time passed.

    assert enqueued(session, SettleBatch, tenant_id=tenant)     # also before the flush
    perform(SettleBatch(tenant_id=tenant), session)             # its arguments, its policy, its perform
    drain(session)                                              # what is due, by the rules of a worker, in this thread
    Clock(session).move("1h")                                   # what was to wait for an hour is due

Everything takes a Session, and then stays in its transaction; or whatever makes Sessions (a sessionmaker, a
scoped_session, an engine), and then works with what is committed. docs/testing.md has the recipes.
"""

from __future__ import annotations

from ..outcome import Outcome
from .clock import Clock
from .draining import LIMIT, Ran, drain
from .fixtures import Drain, Enqueued
from .found import Found, enqueued
from .performing import perform
from .target import Target

__all__ = ["LIMIT", "Clock", "Drain", "Enqueued", "Found", "Outcome", "Ran", "Target", "drain", "enqueued", "perform"]
