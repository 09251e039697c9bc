"""Paused queues: a row of magik_queues, which every claim reads. Whoever starts later sees it, too."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, text
from sqlalchemy.orm import Session, scoped_session

from .errors import EnqueueError
from .home import located
from .job import declared
from .meant import near
from .storable import text as storable
from .writing import written_by

PAUSE: Final = """
INSERT INTO {schema}magik_queues (name, paused_by) VALUES (:name, :by) ON CONFLICT (name) DO NOTHING"""

RESUME: Final = "DELETE FROM {schema}magik_queues WHERE name = :name"

# Every queue that jobs or workers have: of live jobs from one to the next, each a look into the claim index; of dead
# ones those of the latest.
KNOWN: Final = """
WITH RECURSIVE live(queue) AS (
  (SELECT queue FROM {schema}magik_jobs WHERE finished_at IS NULL AND expired_at IS NULL ORDER BY queue LIMIT 1)
 UNION ALL
  SELECT (SELECT j.queue FROM {schema}magik_jobs j
           WHERE j.finished_at IS NULL AND j.expired_at IS NULL AND j.queue > live.queue ORDER BY j.queue LIMIT 1)
    FROM live WHERE live.queue IS NOT NULL)
SELECT queue FROM live WHERE queue IS NOT NULL
UNION SELECT unnest(queues) FROM {schema}magik_workers
UNION SELECT name FROM {schema}magik_queues
UNION SELECT queue FROM (SELECT queue FROM {schema}magik_jobs WHERE expired_at IS NOT NULL
                          ORDER BY expired_at DESC LIMIT 1000) dead"""


def pause_queue(
    connection: Connection | Session | scoped_session[Session], name: str, by: str, *, create: bool = False
) -> bool:
    """Let no job of this queue begin from the caller's commit on; what runs goes on. False where it is paused already.

    `by` is who wants it so, text of 1 to 255 bytes. Raises `EnqueueError` ``MAGIK_QUEUE_UNKNOWN`` for a queue that no
    job, no worker and no job class of this process has, unless `create` says that it is to come; ``MAGIK_ARGS_INVALID``
    for what is no text.
    """
    own, told = written_by(connection), {"name": storable(name, "name"), "by": storable(by, "by")}
    if not create:
        _refuse_unknown(own, name)
    return _one(own, PAUSE, told)


def resume_queue(connection: Connection | Session | scoped_session[Session], name: str) -> bool:
    """Let its jobs begin again from the caller's commit on. False where it is not paused. Raises as `pause_queue`."""
    own = written_by(connection)
    resumed = _one(own, RESUME, {"name": storable(name, "name")})
    if not resumed:
        _refuse_unknown(own, name, "It is not paused: write one that is, as magik queues lists them.")
    return resumed


def _refuse_unknown(connection: Connection, name: str, remedy: str | None = None) -> None:
    names = {*connection.execute(text(located(KNOWN))).scalars()}
    names |= {cls.__magik__.queue for cls in declared().values()}
    if name not in names:
        what = f"No job, no worker and no job class has the queue {name!r}{near(name, names)}"
        raise EnqueueError("MAGIK_QUEUE_UNKNOWN", what, field="name", remedy=remedy)


def _one(connection: Connection, statement: str, told: dict[str, Any]) -> bool:
    return connection.execute(text(located(statement)), told).rowcount == 1
