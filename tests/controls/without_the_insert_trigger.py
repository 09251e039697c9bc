"""An INSERT tells nobody."""

SQL = "DROP TRIGGER magik_jobs_added ON magik_jobs"
