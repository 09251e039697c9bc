"""Fixtures for pytest, found by its entry point wherever magik_sa is installed; docs/testing.md.

Nothing but pytest is imported before a fixture is asked for: whoever uses none pays for none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import Clock, Drain, Enqueued, Target


@pytest.fixture
def magik_session() -> Target:
    """Define a fixture of this name that returns your test's Session or sessionmaker."""
    from .errors import KitError

    raise KitError("MAGIK_TEST_SESSION_MISSING", "The fixtures of magik_sa do not know where your tests' jobs are.")


@pytest.fixture
def magik_enqueued(magik_session: Target) -> Enqueued:
    """``magik_enqueued(SettleBatch, tenant_id=tenant)``: the jobs that wait."""
    from functools import partial

    from .testing import enqueued

    found: Enqueued = partial(enqueued, magik_session)
    return found


@pytest.fixture
def magik_drain(magik_session: Target) -> Drain:
    """``magik_drain()``: run what is due, here."""
    from functools import partial

    from .testing import drain

    return partial(drain, magik_session)


@pytest.fixture
def magik_clock(magik_session: Target) -> Clock:
    """``magik_clock.move("1h")``: let time pass for the jobs."""
    from .testing import Clock

    return Clock(magik_session)
