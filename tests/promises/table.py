"""The promises of docs/guarantees.md, what each rests on, and the test that fails without it.

`without` is a module of tests/controls, whose docstring says how the mechanism is taken out. `fails` is what the test
says then, as a regular expression: it has to fail for this reason and for no other.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Line(NamedTuple):
    """One mechanism of one promise."""

    promise: str
    mechanism: str
    without: str
    test: str
    fails: str
    short: bool = False  # it is part of the suite; the others only with MAGIK_CHAOS=long


ENQUEUE = "tests/integration/test_enqueue.py::"
RACES = "tests/integration/test_enqueue_races.py::"
REPEATS = "tests/acceptance/test_enqueue_repeats.py::"
EFFECTS = "tests/integration/test_effects.py::"
CLAIM = "tests/integration/test_claim.py::"
COST = "tests/integration/test_claim_cost.py::"
WORN = "tests/integration/test_worn_tables.py::"
WALK = "tests/integration/test_walk_cost.py::"
FAIR = "tests/acceptance/test_fairness.py::"
RUN = "tests/integration/test_run.py::"
TICKS = "tests/integration/test_recurring.py::"
TRIES = "tests/integration/test_tries.py::"
LIMITS = "tests/unit/test_timeout.py::"
SUPERSEDED = "tests/acceptance/test_superseded.py::"
KILLED = "tests/acceptance/test_killed.py::"
STOCK = "tests/unit/test_stock.py::"
POISON = "tests/acceptance/test_poison.py::"
STOPPING = "tests/acceptance/test_stopping.py::"
TRIGGERS = "tests/integration/test_migrations_wake.py::"
WAKE = "tests/acceptance/test_wake.py::"

LINES: Final = (
    Line(
        "1",
        "a job is a row of the caller's transaction",
        "without_the_transaction",
        f"{ENQUEUE}test_a_rollback_leaves_no_job",
        r"assert \(1, 1\) == \(0, 0\)",
        short=True,
    ),
    Line(
        "1",
        "written by the flush, so inside of the savepoint",
        "without_the_savepoint",
        f"{ENQUEUE}test_a_rolled_back_savepoint_takes_its_job_along",
        r"assert \{'A', 'B', 'C'\} == \{'A', 'C'\}",
    ),
    Line(
        "2",
        "every write of a run names the version that it was given",
        "without_the_version",
        f"{RUN}test_whoever_lost_its_row_writes_nothing",
        r"<Outcome\.FINISHED.*is <Outcome\.SUPERSEDED",
        short=True,
    ),
    Line(
        "2",
        "a version that is loaded later is somebody else's",
        "without_its_own_version",
        f"{RUN}test_a_version_that_is_loaded_later_is_somebody_elses",
        r"<Outcome\.FINISHED.*is <Outcome\.SUPERSEDED",
    ),
    Line(
        "2",
        "the end of a job is in the transaction of its work",
        "without_one_commit",
        f"{RUN}test_whoever_lost_its_row_writes_nothing",
        r"assert \['good'\] == \[\]",
    ),
    Line(
        "2",
        "what a job flushes is committed by its end alone",
        "without_the_transaction",
        f"{SUPERSEDED}test_of_two_workers_with_one_job_one_commits",
        r"assert \[\(0, 2\)\] == \[\(0, 1\)\]",
    ),
    Line(
        "2",
        "a checkpoint is part of the commit on the way",
        "without_the_checkpoint",
        f"{SUPERSEDED}test_each_part_is_committed_once_although_workers_are_killed",
        r"assert \[\(0, [2-9]\)",
    ),
    Line(
        "2",
        "a run that has lost its lock is told so",
        "without_the_word",
        f"{SUPERSEDED}test_a_run_that_knows_of_its_loss_leaves_the_job_to_the_other",
        r"assert \d+ <= 1",
    ),
    Line(
        "2",
        "jobs that wrote nothing end together, each with the version that it was given",
        "without_the_version_of_each",
        "tests/integration/test_completer.py::test_a_row_that_was_changed_meanwhile_stays_and_holds_up_no_other",
        r"<Outcome\.FINISHED",
    ),
    Line(
        "2",
        "the row is read again under its lock",
        "without_the_truth",
        f"{CLAIM}test_what_changed_between_walk_and_reread_is_dropped",
        r"assert \[Claimed\(.*\] == \[\]",
    ),
    Line(
        "3",
        "nothing is acknowledged before the end",
        "acknowledged_first",
        f"{KILLED}test_a_worker_that_starts_later_takes_a_killed_ones_jobs_at_once",
        r"NotInTime: not within \d+ s: the job runs again",
        short=True,
    ),
    Line(
        "4",
        "a claim is a lock of the worker's session",
        "without_the_session",
        f"{KILLED}test_a_worker_that_starts_later_takes_a_killed_ones_jobs_at_once",
        r"NotInTime: not within \d+ s: the job runs again",
    ),
    Line(
        "4",
        "idle workers look for sessions that are gone",
        "without_the_hint",
        f"{KILLED}test_ten_jobs_of_a_killed_worker_start_again_within_a_second",
        r"ten jobs run again|assert \d+\.\d+ < 1\.0",
    ),
    Line(
        "4, wake-up",
        "a trigger tells of jobs that were added",
        "without_the_insert_trigger",
        f"{TRIGGERS}test_an_insert_tells_of_live_rows_that_are_due",
        r"assert \[\] == \['",
    ),
    Line(
        "4, wake-up",
        "a trigger tells of jobs that were made due",
        "without_the_update_trigger",
        f"{TRIGGERS}test_an_update_tells_of_rows_that_it_made_claimable",
        r"assert \[\] == \['",
    ),
    Line(
        "4, wake-up",
        "whoever has raised its flag looks once more",
        "without_the_second_look",
        f"{WAKE}test_a_job_added_between_the_look_and_the_flag_is_found_by_the_second_look[yes]",
        r"NotInTime: not within \d+ s: the job runs",
    ),
    Line(
        "4, wake-up",
        "the trigger tells of the next five seconds",
        "without_the_horizon",
        f"{WAKE}test_a_scheduled_job_starts_within_50_ms_of_its_time",
        r"assert \d+\.\d+ < 50|not within 8 s: the job runs",
    ),
    Line(
        "4, wake-up",
        "a worker that waits asks for the time of the next job",
        "without_the_look_ahead",
        f"{WAKE}test_a_job_scheduled_beyond_what_is_told_starts_in_time",
        r"NotInTime: not within 8 s: the job runs",
    ),
    Line(
        "5",
        "a unique index of the live keys",
        "without_the_key_index",
        f"{RACES}test_twenty_threads_adding_one_key_at_once",
        r"assert \d+ == 1\n",
    ),
    Line(
        "5",
        "ON CONFLICT DO NOTHING",
        "without_on_conflict",
        f"{REPEATS}test_the_order_beside_a_repeat_is_committed",
        r"UniqueViolation.*magik_jobs_key",
        short=True,
    ),
    Line(
        "5",
        "keys are inserted in one order",
        "without_the_order",
        f"{RACES}test_the_same_keys_in_opposite_order_do_not_deadlock",
        r"DeadlockDetected",
    ),
    Line(
        "5",
        "a claim locks the key, too",
        "without_the_key_lock",
        f"{CLAIM}test_twins_of_a_key_do_not_run_beside_each_other_elsewhere",
        r"assert \(1, \[Claimed.*\(1, \[\], 1\)",
    ),
    Line(
        "5, once()",
        "the primary key of effects",
        "without_the_effects_key",
        f"{EFFECTS}test_of_many_at_once_one_is_the_first",
        r"assert \[True, True",
    ),
    Line(
        "6",
        "the claim of a tick names the tick",
        "without_the_tick",
        f"{TICKS}test_a_tick_is_claimed_once_with_its_job_and_the_next_is_on_the_grid",
        r"assert 1 is None",
        short=True,
    ),
    Line(
        "6",
        "its jobs are added in the transaction of the claim",
        "without_the_ticks_transaction",
        f"{TICKS}test_a_schedule_that_fails_leaves_its_tick",
        r"assert \[\] == \['\d+",
    ),
    Line(
        "7",
        "a claim looks for priorities that are new",
        "without_the_gaps",
        f"{FAIR}test_an_urgent_job_is_started_before_all_that_is_not_about_to_start",
        r"assert \d+ <= 7",
    ),
    Line(
        "8",
        "the note says that a run has begun",
        "without_begun",
        f"{CLAIM}test_a_dead_workers_notes_tell_the_next_holder",
        r"assert \[False, False, False\] == \[True, False, False\]",
        short=True,
    ),
    Line(
        "8",
        "an interruption is a failed try",
        "without_the_count",
        f"{POISON}test_a_job_that_kills_its_process_uses_up_its_tries[True-0]",
        r"AssertionError: not expired",
    ),
    Line(
        "8",
        "a try of a tick is noted before it runs",
        "without_the_try",
        f"{TRIES}test_a_tick_whose_workers_die_rests_longer_from_the_second_on",
        r"assert \(0, None\) == \(1, None\)",
    ),
    Line(
        "8",
        "suspects start one after the other",
        "without_suspects",
        f"{STOCK}test_suspects_start_one_after_the_other",
        r"assert 0\.0 == 0\.1",
    ),
    Line(
        "8, errors",
        "the text of an error is made storable",
        "without_storable_text",
        f"{POISON}test_any_text_of_a_failure_is_recorded",
        r"every job has its outcome",
    ),
    Line(
        "8, timeouts",
        "a limit that is over takes its interrupt back",
        "without_taking_back",
        f"{LIMITS}test_a_limit_that_was_taken_off_interrupts_nobody",
        r"Interrupt",
        short=True,
    ),
    Line(
        "8, timeouts",
        "the clock decides who is over its limit",
        "without_the_clock",
        f"{LIMITS}test_work_that_swallows_everything_is_over_its_limit_all_the_same",
        r"DID NOT RAISE.*JobTimeout",
    ),
    Line(
        "9",
        "the process ends at the deadline, whatever its jobs do",
        "without_the_deadline",
        f"{STOPPING}test_jobs_that_outlast_the_shutdown_timeout_run_again_elsewhere",
        r"the worker still runs after",
    ),
    Line(
        "9",
        "nothing is claimed after the signal",
        "without_the_stop",
        f"{STOPPING}test_jobs_that_end_within_the_shutdown_timeout_end_well",
        r"assert \([3-6], ",
    ),
    Line(
        "9",
        "signals work while the application is imported",
        "without_early_signals",
        f"{STOPPING}test_a_signal_while_the_worker_boots_is_not_lost",
        r"the worker still runs after|\[2, 2, 2, 2, 2\] == \[0, 0, 0, 0, 0\]",
    ),
    Line(
        "10",
        "the fence: no more locks than rows",
        "without_the_fence",
        f"{CLAIM}test_as_many_locks_as_rows_when_the_plan_sorts",
        r"assert 50 == 500",
        short=True,
    ),
    Line(
        "10",
        "the claim's index has live rows only",
        "without_the_partial_index",
        f"{COST}test_rows_that_have_ended_cost_a_claim_nothing",
        r"assert \d{5} < 60",
    ),
    Line(
        "10",
        "a mark in each priority: what is walked past is not read again",
        "without_the_marks",
        f"{WALK}test_rows_locked_elsewhere_are_walked_past_once",
        r"assert \[False, False, False\] == ",
    ),
    Line(
        "10",
        "a full walk for what has come to lie before a mark",
        "without_the_full_walk",
        f"{FAIR}test_while_jobs_are_due_no_pause_is_longer_than_a_second",
        r"NotInTime: not within 10 s: 100 starts",
    ),
    Line(
        "10",
        "no more is claimed than threads are about to start",
        "without_the_limit",
        f"{FAIR}test_under_a_flood_claims_are_few_and_read_little",
        r"assert \d+ <= 7",
    ),
    Line(
        "10",
        "the re-read goes by the primary key",
        "without_the_coalesce",
        f"{COST}test_the_reread_goes_by_the_primary_key",
        r"\{'magik_jobs_claim'\} == \{'magik_jobs_pkey'\}",
    ),
    Line(
        "10",
        "what belongs to a job is looked up by itself, in no join",
        "without_the_lateral",
        f"{WORN}test_each_statement_of_a_jobs_life_reads_its_own_rows",
        r"assert \d+ < \(2 \* 1000\)",
    ),
)
