"""From one priority of a queue to the next, in SQL: a part of the statements that go by priority."""

from __future__ import annotations

from typing import Final

# A queue is paused by its row, which every statement that looks for jobs reads itself: nothing is remembered that could
# go stale, whoever starts or reconnects later. One look by primary key, before anything else is read.
PAUSED: Final = "EXISTS (SELECT FROM {queues} WHERE name = %(queue)s)"

# A plain walk in the order of the claim index reads every future row of the more urgent priorities before PostgreSQL
# 18, and a plain min(run_at) all of them. The recursion goes from one known priority to the next, and looks for one
# that nobody told us of only in the gap between them: to find them all anew it would step over the dead rows of each.
# A paused queue has no priorities.
PRIORITIES: Final = f"""
WITH RECURSIVE p(priority) AS (
  SELECT -32769 WHERE NOT {PAUSED}
 UNION ALL
  SELECT coalesce((SELECT j.priority::int FROM {{jobs}} j
                    WHERE j.queue = %(queue)s AND j.finished_at IS NULL AND j.expired_at IS NULL
                      AND j.priority > p.priority AND j.priority < k.next
                    ORDER BY j.priority LIMIT 1),
                  nullif(k.next, 32768))
    FROM p CROSS JOIN LATERAL (SELECT coalesce(min(x), 32768) AS next
                                 FROM unnest(%(priorities)s::int[]) x WHERE x > p.priority) k
   WHERE p.priority IS NOT NULL)"""
