"""All scenarios, in the order of the report."""

from __future__ import annotations

from typing import Final

from ..scenario import Scenario
from . import beside, drain, enqueueing, inserting, killed, latency, producing, resting, snapshot, threads

ALL: Final[dict[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        drain.SCENARIO,
        inserting.ADD,
        inserting.INSERT,
        enqueueing.ENQUEUE,
        enqueueing.BULK,
        latency.SCENARIO,
        producing.BUSY,
        producing.KEEPING_UP,
        snapshot.MINUTE,
        snapshot.LONG,
        beside.SCHEDULED_ROWS,
        beside.HEAD_ROWS,
        killed.SCENARIO,
        resting.MEMORY,
        resting.IDLE,
        threads.SCENARIO,
    )
}
