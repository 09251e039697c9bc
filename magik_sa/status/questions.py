"""The SQL behind a status. It reads no arguments, and no rows that are neither live nor asked for."""

from __future__ import annotations

from typing import Final

from ..names import MAINTENANCE

# Times as text: a row may hold one that Python cannot.
UTC: Final = r"""coalesce(to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24\:MI\:SS"Z"'), {}::text)"""

# Every exclusive advisory lock of this database; one bigint key is a job's, a pair of ints the flag of a queue.
# pg_locks can be read by every role.
HELD: Final = """
SELECT pid, objsubid, classid, objid, (classid::bigint << 32) | objid::bigint AS key
  FROM pg_locks
 WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock'
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""

# Which jobs those are. The lock decides, the note only names the job: hashing the notes instead of all live rows took
# 1.2 ms at 500,000 rows, against 120. IS TRUE keeps it from becoming a join, which may read all notes for each lock.
CLAIMED: Final = """
SELECT job_id, backend_pid, claimed_at, begun FROM {schema}magik_claims
 WHERE ((uuid_hash_extended(job_id, :oid), backend_pid) IN (SELECT key, pid FROM held WHERE objsubid = 1)) IS TRUE"""

# What a worker has said to have ended in a minute: that until it was last said, or where that is longer ago than a
# worker with something to say would leave it, the last. (Its first element is the latest; of a row by hand that has
# something else there nothing counts.)
ENDED: Final = """
SELECT coalesce(sum(w.ended[i.at][q.nth]), 0)::bigint FROM generate_subscripts(w.ended_at, 1) i (at)
 WHERE w.ended_at[i.at] > CASE WHEN w.ended_at[1] > now() - interval '15 s' THEN w.ended_at[1] ELSE now() END
                          - interval '1 min'"""

# The rows of magik_workers whose session is there. A role without pg_read_all_stats sees the process id of another
# role's session and not its start: then `certain` is false, and only locks show that it is a worker's still.
WORKERS: Final = f"""
WITH held AS MATERIALIZED ({HELD}), claimed AS MATERIALIZED ({CLAIMED})
SELECT w.name, w.backend_pid AS pid, w.queues, w.draining, a.backend_start IS NOT NULL AS certain,
       {UTC.format("w.backend_start", "w.backend_start")} AS since,
       (SELECT count(*) FROM claimed WHERE claimed.backend_pid = w.backend_pid) AS running,
       ARRAY(SELECT q FROM unnest(w.queues) q
              WHERE EXISTS (SELECT FROM held
                             WHERE held.pid = w.backend_pid AND held.objsubid = 2 AND held.classid = (:oid)::oid
                               AND held.objid::bigint = hashtext(q)::bigint & 4294967295)) AS waits_for,
       ARRAY(SELECT ({ENDED}) FROM unnest(w.queues) WITH ORDINALITY q (name, nth) ORDER BY q.nth) AS ended
  FROM (SELECT DISTINCT ON (backend_pid) * FROM {{schema}}magik_workers ORDER BY backend_pid, backend_start DESC) w
  JOIN pg_stat_activity a ON a.pid = w.backend_pid AND coalesce(a.backend_start = w.backend_start, true)
 ORDER BY w.name, w.backend_pid"""

# The live rows, level by level (queue and priority): each step is one look into the claim index, and within a level the
# due rows come first. So neither finished nor dead rows are read, and of the others no more than the limit. What is
# claimed is looked up in a hashed list. A job is as old as its run_at, unless that is "-infinity": then it is to be the
# first, and its age is that of the row.
LIVE: Final = f"""
WITH RECURSIVE held AS MATERIALIZED ({HELD}), claimed AS MATERIALIZED ({CLAIMED}),
level AS (
  (SELECT queue, priority FROM {{schema}}magik_jobs WHERE finished_at IS NULL AND expired_at IS NULL
    ORDER BY queue, priority LIMIT 1)
 UNION ALL
  SELECT following.queue, following.priority FROM level CROSS JOIN LATERAL (
    SELECT j.queue, j.priority FROM {{schema}}magik_jobs j
     WHERE j.finished_at IS NULL AND j.expired_at IS NULL AND (j.queue, j.priority) > (level.queue, level.priority)
     ORDER BY j.queue, j.priority LIMIT 1) following),
live AS (
  SELECT level.queue, j.*, j.id IN (SELECT job_id FROM claimed) AS taken,
         CASE WHEN isfinite(j.run_at) THEN j.run_at ELSE j.enqueued_at END AS due_at
    FROM level CROSS JOIN LATERAL (
      (SELECT j.id, j.job_class, j.run_at, j.enqueued_at, j.error_count, true AS due FROM {{schema}}magik_jobs j
        WHERE j.queue = level.queue AND j.priority = level.priority AND j.finished_at IS NULL AND j.expired_at IS NULL
          AND j.run_at <= now()
        ORDER BY j.run_at LIMIT :limit)
     UNION ALL
      (SELECT j.id, j.job_class, j.run_at, j.enqueued_at, j.error_count, false AS due FROM {{schema}}magik_jobs j
        WHERE j.queue = level.queue AND j.priority = level.priority AND j.finished_at IS NULL AND j.expired_at IS NULL
          AND j.run_at > now()
        ORDER BY j.run_at LIMIT :limit)) j)
SELECT queue, job_class, due, count(*) AS read, count(*) FILTER (WHERE NOT taken) AS rows,
       count(*) FILTER (WHERE error_count > 0) AS errored,
       extract(epoch FROM now() - min(due_at) FILTER (WHERE due AND NOT taken AND isfinite(due_at)))::float AS oldest
  FROM live GROUP BY queue, job_class, due"""

# By primary key, as in a claim: the predicate of the partial index itself would draw the planner to that index. One by
# one, as there: by a join all of that key may be read for each.
RUNNING: Final = f"""
WITH held AS MATERIALIZED ({HELD}), claimed AS MATERIALIZED ({CLAIMED})
SELECT j.queue, count(*) AS rows FROM claimed CROSS JOIN LATERAL (
  SELECT j.queue FROM {{schema}}magik_jobs j
   WHERE j.id = claimed.job_id AND coalesce(j.finished_at, j.expired_at) IS NULL OFFSET 0) j
 GROUP BY j.queue"""

# The same jobs one by one; those that were claimed first come first. A row that is gone or dead was taken from its run,
# or its run has ended this moment. No column is read but those that an observer may read.
JOBS: Final = f"""
WITH held AS MATERIALIZED ({HELD}), claimed AS MATERIALIZED ({CLAIMED})
SELECT claimed.backend_pid AS pid, claimed.job_id::text AS id, j.job_class, j.queue,
       {UTC.format("claimed.claimed_at", "claimed.claimed_at")} AS since, claimed.begun,
       CASE WHEN j.id IS NULL THEN 'cancelled' WHEN j.expired_at IS NULL THEN 'running' ELSE 'discarded' END AS state
  FROM claimed LEFT JOIN LATERAL (
  SELECT id, job_class, queue, finished_at, expired_at FROM {{schema}}magik_jobs
   WHERE id = claimed.job_id OFFSET 0) j ON true
 WHERE j.finished_at IS NULL ORDER BY claimed.claimed_at, claimed.job_id LIMIT :limit"""

# The latest of them: whoever lets a million dead letters lie learns that they are many.
EXPIRED: Final = """
SELECT queue, count(*) AS rows FROM (
  SELECT queue FROM {schema}magik_jobs WHERE expired_at IS NOT NULL ORDER BY expired_at DESC LIMIT :limit) e
 GROUP BY queue"""

PAUSED: Final = f"""
SELECT name, paused_by, {UTC.format("paused_at", "paused_at")} AS paused_at FROM {{schema}}magik_queues"""

# The rows of a worker's maintenance are no schedules of the application's.
SCHEDULES: Final = f"""
SELECT name, job_class, declaration, {UTC.format("next_run_at", "next_run_at")} AS next_run_at,
       {UTC.format("last_run_at", "last_run_at")} AS last_run_at, paused_at IS NOT NULL AS paused, paused_by,
       {UTC.format("paused_at", "paused_at")} AS paused_at,
       paused_at IS NULL AND next_run_at <= now() AS due,
       paused_at IS NULL AND next_run_at < now() - make_interval(secs => :late) AS stale,
       deaths, coalesce(rests_until > now(), false) AS rests
  FROM {{schema}}magik_job_schedules WHERE job_class <> '{MAINTENANCE}' ORDER BY name"""
