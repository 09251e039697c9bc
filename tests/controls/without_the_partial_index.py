"""The index of the claim has every row in it, the finished and the dead too."""

SQL = """
DROP INDEX magik_jobs_claim;
CREATE INDEX magik_jobs_claim ON magik_jobs (queue, priority, run_at, id)"""
