"""An UPDATE that makes a job due tells nobody."""

SQL = "DROP TRIGGER magik_jobs_changed ON magik_jobs"
