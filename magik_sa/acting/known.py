"""Which classes and queues there are, for who has misspelt one. A look at the first rows: no more than a hint."""

from __future__ import annotations

from typing import Final

from .bounds import Where, bounded

# In the order of two indexes, so that no more is read than that.
NAMES: Final = """
SELECT DISTINCT job_class, queue FROM (
  (SELECT job_class, queue FROM {schema}magik_jobs WHERE finished_at IS NULL AND expired_at IS NULL
    ORDER BY queue, priority, run_at, id LIMIT :most)
 UNION ALL
  (SELECT job_class, queue FROM {schema}magik_jobs WHERE expired_at IS NOT NULL
    ORDER BY expired_at DESC LIMIT :most)) j"""
MOST: Final = 10_000


def names(where: Where) -> tuple[set[str], set[str]]:
    """Classes, and queues, of the first live jobs and the latest dead letters."""
    with bounded(where) as bound:
        rows = bound.ask(NAMES, {"most": MOST})
    return {row.job_class for row in rows}, {row.queue for row in rows}
