"""What the notes beside the claims say: in a job that has to know whether its run is noted as begun."""

from __future__ import annotations

from .effects import Identified, execute
from .waiting import until

# A worker that says so of no run before it has ended: what dies in it has not begun, as far as is known. And suspects
# start one after the other, however long one of them takes to die.
NEVER = "from magik_sa.worker import book, suspects; book.BEGUN_AFTER = suspects.PROBATION = 60.0"
UNNOTED = ("-c", f"{NEVER}; from tests.controls import work; work()")

BEGUN = "SELECT FROM magik_claims WHERE job_id = %s AND begun"


def wait_until_noted(job: Identified) -> None:
    """Returns when the note of this job says that its run has begun."""
    until(lambda: execute(BEGUN, (job.id,)).rowcount > 0, what="the note says so")
