"""The SQL of pruning. Each statement is one batch: it removes at most `:batch` rows, found by an index, and says how
many. There is no trigger for a DELETE, so none of them wakes anybody.
"""

from __future__ import annotations

from typing import Final

# For one transaction, so that it works behind any pooler. A crash of the server may bring back what was just removed:
# it is removed again. The order is that of an index, whatever the statistics say of a table that is mostly empty.
SETTINGS: Final = """
SELECT set_config('lock_timeout', '2s', true), set_config('statement_timeout', '30s', true),
       set_config('synchronous_commit', 'off', true), set_config('jit', 'off', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true)"""

# Every class that has finished rows, each by one look into the index.
CLASSES: Final = """
WITH RECURSIVE kept AS (
  (SELECT job_class FROM {schema}magik_jobs WHERE finished_at IS NOT NULL ORDER BY job_class LIMIT 1)
 UNION ALL
  SELECT (SELECT j.job_class FROM {schema}magik_jobs j
           WHERE j.finished_at IS NOT NULL AND j.job_class > kept.job_class ORDER BY j.job_class LIMIT 1)
    FROM kept WHERE kept.job_class IS NOT NULL)
SELECT job_class FROM kept WHERE job_class IS NOT NULL"""

# The rows of one kind that are old enough: `moment` is when they ended, `also` what else they have to be. A dead letter
# stays one also where somebody wrote finished_at into it.
OLD: Final = "{moment} IS NOT NULL AND {moment} < now() - make_interval(secs => :age) {also}"
OF_CLASS: Final = "AND job_class = :job_class"
FINISHED: Final = {"moment": "finished_at", "also": f"{OF_CLASS} AND expired_at IS NULL"}
EXPIRED: Final = {"moment": "expired_at", "also": ""}
EXPIRED_OF_CLASS: Final = {"moment": "expired_at", "also": OF_CLASS}

# The next batch begins where the last one ended: while somebody's old transaction keeps the removed rows from being
# cleaned away, each batch would otherwise walk past all before it. Rows are locked as they are found, and are looked
# at again then: one that somebody has just brought back to life is not removed, one that somebody holds is left.
JOBS: Final = f"""
WITH gone AS (
  DELETE FROM {{schema}}magik_jobs
   WHERE id = ANY(ARRAY(
           SELECT id FROM {{schema}}magik_jobs WHERE {OLD} AND {{moment}} >= CAST(:since AS timestamptz)
            ORDER BY {{moment}} LIMIT :batch FOR UPDATE SKIP LOCKED))
  RETURNING {{moment}})
SELECT count(*) AS rows, count(*) AS read, CAST(max({{moment}}) AS text) AS since FROM gone"""
JOBS_COUNT: Final = f"SELECT count(*) AS rows FROM {{schema}}magik_jobs WHERE {OLD}"

# A note whose session has ended and whose job is no more: it can tell of no interruption. The owner stands in the
# DELETE: a note that somebody else writes meanwhile is his. (backend_start is NULL to a role that may not see it.)
# OFFSET 0 and IS TRUE keep both from becoming joins, which may read a table that an old snapshot has filled with dead
# rows once for each note.
GONE: Final = """
NOT EXISTS (SELECT FROM pg_stat_activity a
             WHERE a.pid = {it}.backend_pid AND coalesce(a.backend_start = {it}.backend_start, true))"""
ORPHANS: Final = f"""
SELECT c.job_id, c.backend_pid, c.backend_start FROM {{schema}}magik_claims c
 WHERE {GONE.format(it="c")}
   AND NOT EXISTS (SELECT FROM {{schema}}magik_jobs j
                    WHERE j.id = c.job_id AND coalesce(j.finished_at, j.expired_at) IS NULL OFFSET 0)"""
NOTES: Final = f"""
WITH orphan AS MATERIALIZED ({ORPHANS} LIMIT :batch),
gone AS (
  DELETE FROM {{schema}}magik_claims
   WHERE job_id = ANY(ARRAY(SELECT job_id FROM orphan))
     AND ((job_id, backend_pid, backend_start) IN (SELECT * FROM orphan)) IS TRUE
  RETURNING 1)
SELECT count(*) AS rows, count(*) AS read FROM gone"""
NOTES_COUNT: Final = f"SELECT count(*) AS rows FROM ({ORPHANS}) o"

# Where a worker lives it removes the rows of dead ones itself, and wakes others for their jobs by it: such a row is
# taken away here only where there is nobody left to be woken.
DEAD: Final = f"""
{GONE.format(it="w")}
   AND NOT EXISTS (SELECT FROM {{schema}}magik_workers o JOIN pg_stat_activity a
                       ON a.pid = o.backend_pid AND coalesce(a.backend_start = o.backend_start, true))"""
WORKERS: Final = f"""
WITH gone AS (
  DELETE FROM {{schema}}magik_workers
   WHERE (backend_pid, backend_start) IN (
           SELECT w.backend_pid, w.backend_start FROM {{schema}}magik_workers w WHERE {DEAD} LIMIT :batch)
  RETURNING 1)
SELECT count(*) AS rows, count(*) AS read FROM gone"""
WORKERS_COUNT: Final = f"SELECT count(*) AS rows FROM {{schema}}magik_workers w WHERE {DEAD}"

# No index knows how old they are, so all of them are read, page by page of the key. How old they are is asked again of
# the places: in a table that somebody has partitioned there is one such place in each part.
EFFECTS: Final = """
WITH page AS MATERIALIZED (
  SELECT scope, key_digest, done_at FROM {schema}magik_effects
   WHERE (scope, key_digest) > (CAST(:scope AS text), CAST(:key_digest AS bytea))
   ORDER BY scope, key_digest LIMIT :batch),
gone AS (
  DELETE FROM {schema}magik_effects
   WHERE ctid = ANY(ARRAY(
           SELECT old.ctid FROM page CROSS JOIN LATERAL (
             SELECT ctid FROM {schema}magik_effects
              WHERE scope = page.scope AND key_digest = page.key_digest
                AND done_at < now() - make_interval(secs => :age)
                FOR UPDATE SKIP LOCKED) old))
     AND done_at < now() - make_interval(secs => :age)
  RETURNING 1),
last AS (SELECT scope, key_digest FROM page ORDER BY scope DESC, key_digest DESC LIMIT 1)
SELECT (SELECT count(*) FROM gone) AS rows, (SELECT count(*) FROM page) AS read,
       (SELECT scope FROM last) AS scope, (SELECT key_digest FROM last) AS key_digest"""
EFFECTS_COUNT: Final = """
SELECT count(*) AS rows FROM {schema}magik_effects WHERE done_at < now() - make_interval(secs => :age)"""
