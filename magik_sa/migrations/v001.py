"""Version 1 of the tables: the jobs, what stands around them, and the triggers that wake a worker.

Every statement goes through `op.execute`, so that ``alembic upgrade head --sql`` prints what a connection would
run. ``{schema}`` is the configured schema with its dot, or nothing where the search_path decides; no other name
is ever put together.

What the triggers and the workers must agree on, to the letter:

* the flag of a queue is the advisory lock ``pg_try_advisory_lock(<FLAG_KEY_SQL>)``, `FLAG_KEY_SQL` being
  ``<oid of magik_jobs>::int, hashtext(<queue>)``. A cast from oid to int wraps round and never fails, so oids
  above 2³¹ are as good as any;
* the channel is ``'magik_' || <oid of magik_jobs>`` (a schema's name in it can be too long for a channel, and
  then every INSERT fails); what it carries is the queue's name;
* the empty notification tells that queues were paused or resumed: no queue is called so;
* the setting ``magik_sa.wake``: 'off' makes a statement wake nobody; its rows wait for the next poll.

A lock of one's own never refuses oneself: a session that holds a queue's flag and writes jobs into that queue
is not told about them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ..home import located
from ..version import CHANGED_HANDS, KEPT, LAST

if TYPE_CHECKING:
    from alembic.operations import Operations

FLAG_KEY_SQL: Final = "{table}::int, hashtext({queue})"

# Names, order and defaults of the columns are the model's, to the letter. Lengths are in bytes, because a notification
# is limited in bytes. With fillfactor 90 a page keeps room for the next version of its rows: a note of a failure stays
# on its page (1,000 of 1,000, against none at 100). Autovacuum counts rows instead of shares, so that a table which is
# nearly always empty is cleaned as early as a full one, and does not pause while it cleans.
JOBS: Final = """
CREATE TABLE {schema}magik_jobs (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    job_class text NOT NULL,
    queue text NOT NULL DEFAULT 'default',
    priority smallint NOT NULL DEFAULT '100',
    run_at timestamptz NOT NULL DEFAULT now(),
    args jsonb NOT NULL DEFAULT '{{}}',
    context jsonb,
    key_digest bytea,
    version integer NOT NULL DEFAULT 1,
    error_count integer NOT NULL DEFAULT 0,
    last_error text,
    failed_at timestamptz,
    enqueued_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    expired_at timestamptz,
    CONSTRAINT magik_jobs_pkey PRIMARY KEY (id),
    CONSTRAINT magik_jobs_job_class_check CHECK (octet_length(job_class) BETWEEN 1 AND 255),
    CONSTRAINT magik_jobs_queue_check CHECK (octet_length(queue) BETWEEN 1 AND 255),
    CONSTRAINT magik_jobs_args_check CHECK (jsonb_typeof(args) = 'object')
) WITH (
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0
)"""

# One index for the claim, in the order of the walk; finished and dead rows are not in it, so they cost a claim
# nothing. The walk reads no other column from it: job_class beside it made it 47 % larger and saved nothing.
CLAIM: Final = """
CREATE INDEX magik_jobs_claim ON {schema}magik_jobs (queue, priority, run_at, id)
    WHERE finished_at IS NULL AND expired_at IS NULL"""

# One live job for each class and key. A dead letter must not block its key, hence the whole predicate.
KEY: Final = """
CREATE UNIQUE INDEX magik_jobs_key ON {schema}magik_jobs (job_class, key_digest)
    WHERE key_digest IS NOT NULL AND finished_at IS NULL AND expired_at IS NULL"""

# For cleaning. Rows are kept for as long as their class says, so the class comes first: by finished_at alone, a class
# that keeps its rows for a day would walk past the year of another each time.
FINISHED: Final = """
CREATE INDEX magik_jobs_finished ON {schema}magik_jobs (job_class, finished_at)
    WHERE finished_at IS NOT NULL"""

# For the operator, who asks for the latest dead letters.
EXPIRED: Final = """
CREATE INDEX magik_jobs_expired ON {schema}magik_jobs (expired_at)
    WHERE expired_at IS NOT NULL"""

# One row a schedule; `declaration` is what its class says: {"every": "10m"}, or
# {"cron": "0 3 * * *", "zone": "Europe/Paris"}.
SCHEDULES: Final = """
CREATE TABLE {schema}magik_job_schedules (
    name text NOT NULL,
    job_class text NOT NULL,
    declaration jsonb NOT NULL,
    next_run_at timestamptz NOT NULL,
    last_run_at timestamptz,
    paused_at timestamptz,
    paused_by text,
    tried_at timestamptz,
    deaths integer NOT NULL DEFAULT 0,
    rests_until timestamptz,
    CONSTRAINT magik_job_schedules_pkey PRIMARY KEY (name),
    CONSTRAINT magik_job_schedules_declaration_check CHECK (jsonb_typeof(declaration) = 'object')
)"""

# Only the queues that somebody paused; a queue without a row runs.
QUEUES: Final = """
CREATE TABLE {schema}magik_queues (
    name text NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT now(),
    paused_by text,
    CONSTRAINT magik_queues_pkey PRIMARY KEY (name)
)"""

# Who claimed what: a breadcrumb, never the answer to "is this job claimed" (pg_locks is). UNLOGGED, because a note
# then waits for no disk, and after a crash of the server no claim is left to be noted. With fillfactor 70 nine of ten
# updates of `begun` stay on their page. No foreign key: a note may outlive its job, and must not hold up its end.
CLAIMS: Final = """
CREATE UNLOGGED TABLE {schema}magik_claims (
    job_id uuid NOT NULL,
    worker text NOT NULL,
    backend_pid integer NOT NULL,
    backend_start timestamptz NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT now(),
    begun boolean NOT NULL DEFAULT false,
    CONSTRAINT magik_claims_pkey PRIMARY KEY (job_id)
) WITH (fillfactor = 70)"""

# One row for each session of a worker, so that the death of one is noticed once, by one. The process id alone is used
# again by the next session; with its start it is unique. For people it says how many threads need a connection of the
# pool, how many that gives (NULL: without a limit), and what has ended of late: `ended[i][n]` jobs of the n-th queue
# until `ended_at[i]`; and that it is `draining`, told to end. That changes while there is work, hence the room on its
# page.
WORKERS: Final = """
CREATE UNLOGGED TABLE {schema}magik_workers (
    backend_pid integer NOT NULL,
    backend_start timestamptz NOT NULL,
    name text NOT NULL,
    queues text[] NOT NULL,
    threads integer,
    pool integer,
    ended_at timestamptz[],
    ended integer[],
    draining boolean NOT NULL DEFAULT false,
    CONSTRAINT magik_workers_pkey PRIMARY KEY (backend_pid, backend_start)
) WITH (fillfactor = 70)"""

# What happened once and for ever. Only the digest of a key: the key itself may hold what must never be shown.
EFFECTS: Final = """
CREATE TABLE {schema}magik_effects (
    scope text NOT NULL,
    key_digest bytea NOT NULL,
    done_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT magik_effects_pkey PRIMARY KEY (scope, key_digest),
    CONSTRAINT magik_effects_scope_check CHECK (octet_length(scope) BETWEEN 1 AND 255),
    CONSTRAINT magik_effects_key_digest_check CHECK (octet_length(key_digest) = 32)
)"""

# The installed version: a key that can only be true makes a second row impossible.
SCHEMA: Final = """
CREATE TABLE {schema}magik_schema (
    only_row boolean NOT NULL DEFAULT true,
    version integer NOT NULL,
    CONSTRAINT magik_schema_pkey PRIMARY KEY (only_row),
    CONSTRAINT magik_schema_only_row_check CHECK (only_row),
    CONSTRAINT magik_schema_version_check CHECK (version > 0)
)"""

# Wake a waiting worker once for each queue in which this statement put a job that is due now or in a moment.
#
# NOTIFY holds a lock of the whole database through the commit's write to disk and brings ten producers down to the
# rate of one, so it is sent only where somebody waits. A waiting worker holds the queue's flag exclusively: the
# shared try then fails, and only then is it told. Where the try succeeds nobody waits, and the lock, held until after
# the commit is visible, keeps a worker from going to sleep between this row and its last look.
#
# * Transition tables and TG_RELID need no name to be looked up, whatever the caller's search_path.
# * clock_timestamp(), not now(): in a transaction that has been open for a while, a job that was due in ten seconds
#   at its start is due now. The five seconds are the poll's: what is due later is seen by a poll first.
# * The queues as an array, which is looked through one by one: one lock a queue, not one a row. As one query it cost
#   an INSERT of one row 56 µs instead of 15, nearly as much as the INSERT itself. Two rows are asked for first, as most
#   statements have one, which needs no DISTINCT; and the setting is asked for here, not in a WHEN of the trigger, which
#   is put together anew for each statement: 6 µs instead of 10 (PostgreSQL 18, statements in a loop on the server).
# * After a hundred queues in one statement no more locks are taken and the rest is told outright: the lock table is
#   the whole server's, and a needless notification does no harm.
WAKE: Final = """
CREATE FUNCTION {schema}magik_jobs_{verb}() RETURNS trigger LANGUAGE plpgsql AS $magik$
DECLARE
  queues text[];
  due text;
  nth int := 0;
BEGIN
  IF current_setting('magik_sa.wake', true) = 'off' THEN
    RETURN NULL;
  END IF;
{find}
  FOREACH due IN ARRAY queues LOOP
    nth := nth + 1;
    IF nth > 100 OR NOT pg_try_advisory_xact_lock_shared({flag}) THEN
      PERFORM pg_notify('magik_' || TG_RELID, due);
    END IF;
  END LOOP;
  RETURN NULL;
END
$magik$"""

DUE: Final = "finished_at IS NULL AND expired_at IS NULL AND run_at <= clock_timestamp() + interval '5 s'"

ADDED: Final = f"""
  queues := ARRAY(SELECT queue FROM added WHERE {DUE} LIMIT 2);
  IF cardinality(queues) > 1 THEN
    queues := ARRAY(SELECT DISTINCT queue FROM added WHERE {DUE});
  END IF;"""

# An UPDATE has work for somebody only where it made a row claimable that was not so before: moved, retried, brought
# back to life. A job that saves where it has got to is live and due, but its own worker holds it, and its shared lock
# would keep others from sleeping until it commits. EXCEPT, not a join: the plan is made once, for the few rows of the
# first statement, and a nested loop over 100,000 would not end.
CHANGED: Final = f"""
  queues := ARRAY(
    SELECT DISTINCT queue FROM (
      SELECT id, queue, run_at, error_count FROM after WHERE {DUE}
      EXCEPT
      SELECT id, queue, run_at, error_count FROM before WHERE finished_at IS NULL AND expired_at IS NULL) claimable);"""

# Two triggers on jobs: a transition table allows neither two events nor a list of columns. None for DELETE: an end
# wakes nobody.
ON_INSERT: Final = """
CREATE TRIGGER magik_jobs_added AFTER INSERT ON {schema}magik_jobs
    REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}magik_jobs_added()"""

ON_UPDATE: Final = """
CREATE TRIGGER magik_jobs_changed AFTER UPDATE ON {schema}magik_jobs
    REFERENCING OLD TABLE AS before NEW TABLE AS after
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}magik_jobs_changed()"""

# A pause holds, and ends, from its commit on, by whatever statement: workers look at once. The job table is the one
# beside this, whatever the caller's search_path.
PAUSES: Final = """
CREATE FUNCTION {schema}magik_queues_changed() RETURNS trigger LANGUAGE plpgsql AS $magik$
BEGIN
  PERFORM pg_notify('magik_' || jobs.oid, '')
     FROM pg_class jobs JOIN pg_class queues USING (relnamespace)
    WHERE jobs.relname = 'magik_jobs' AND queues.oid = TG_RELID;
  RETURN NULL;
END
$magik$"""

ON_PAUSE: Final = """
CREATE TRIGGER magik_queues_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON {schema}magik_queues
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}magik_queues_changed()"""

# The end of a run's row, to be sent with the COMMIT behind it: it raises where it has written nothing, and then the
# server does not look at the COMMIT. Two conditions of our own: the row is another run's by now, or it is not and a
# trigger or a policy has kept it. It names the table with its schema, which is asked for here: the search_path that it
# is called with need not be this one. No % of format(): a script printed for pyformat has two of each.
ENDED: Final = f"""
DO $do$ BEGIN EXECUTE replace($sql$
CREATE FUNCTION <home>.magik_jobs_ended(its_id uuid, its_version integer, keep boolean) RETURNS void
LANGUAGE plpgsql AS $magik$
BEGIN
  IF keep THEN
    UPDATE <home>.magik_jobs SET finished_at = statement_timestamp(),
           version = CASE WHEN version = {LAST} THEN 1 ELSE version + 1 END
     WHERE id = its_id AND version = its_version;
  ELSE
    DELETE FROM <home>.magik_jobs WHERE id = its_id AND version = its_version;
  END IF;
  IF NOT FOUND THEN
    IF EXISTS (SELECT FROM <home>.magik_jobs WHERE id = its_id AND version = its_version) THEN
      RAISE 'the row was not written' USING ERRCODE = '{KEPT}';
    END IF;
    RAISE 'the row is not this run''s any more' USING ERRCODE = '{CHANGED_HANDS}';
  END IF;
END
$magik$
$sql$, '<home>', (SELECT typnamespace::regnamespace::text
                    FROM pg_type WHERE oid = pg_typeof(NULL::{{schema}}magik_jobs))); END $do$"""

TABLES: Final = (JOBS, CLAIM, KEY, FINISHED, EXPIRED, SCHEDULES, QUEUES, CLAIMS, WORKERS, EFFECTS, SCHEMA)

# Everything by its name: what to look for where it is asked whether the tables are whole.
PARTS: Final[dict[str, tuple[str, ...]]] = {
    "table": (
        "magik_jobs",
        "magik_job_schedules",
        "magik_queues",
        "magik_claims",
        "magik_workers",
        "magik_effects",
        "magik_schema",
    ),
    "index": ("magik_jobs_claim", "magik_jobs_key", "magik_jobs_finished", "magik_jobs_expired"),
    "function": ("magik_jobs_added", "magik_jobs_changed", "magik_queues_changed", "magik_jobs_ended"),
    "trigger": ("magik_jobs_added", "magik_jobs_changed", "magik_queues_changed"),
}


def statements() -> Iterator[str]:
    """What makes the tables, then what wakes the workers; ``{schema}`` stands where the schema goes."""
    yield from TABLES
    for verb, find, trigger in (("added", ADDED, ON_INSERT), ("changed", CHANGED, ON_UPDATE)):
        flag = FLAG_KEY_SQL.format(table="TG_RELID", queue="due")
        yield WAKE.format(schema="{schema}", verb=verb, find=find, flag=flag)
        yield trigger
    yield from (PAUSES, ON_PAUSE, ENDED)


def upgrade(op: Operations) -> None:
    """Make all of it."""
    for statement in statements():
        op.execute(located(statement))


def downgrade(op: Operations) -> None:
    """Leave nothing behind. The triggers go with their table, their functions after it."""
    for name in reversed(PARTS["table"]):
        op.execute(located("DROP TABLE {schema}{name}", name=name))
    for name in PARTS["function"]:
        op.execute(located("DROP FUNCTION {schema}{name}", name=name))
