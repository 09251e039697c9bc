"""Nobody is told that a queue was paused or resumed: the trigger is not there."""

SQL = "DROP TRIGGER magik_queues_changed ON magik_queues"
