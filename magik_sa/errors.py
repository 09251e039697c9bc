"""Every error of the package and its stable code.

A code is API: it is never renamed and never removed, only added to. Each error says what happened, what
mends it, and where the documentation tells more; the classes are split by the moment one meets them.
"""

from __future__ import annotations

from typing import Final

from .harmless import harmless

DOCS: Final = "docs/errors.md"

REMEDIES: Final[dict[str, str]] = {
    # declaration: raised while a job class is made
    "MAGIK_OPTION_UNKNOWN": "Use one of the documented options, spelt as in docs/options.md.",
    "MAGIK_OPTION_INVALID": "Give the option a value of the documented type and range.",
    "MAGIK_NAME_RESERVED": "Rename the argument: a Job has something of that name.",
    "MAGIK_NAME_TAKEN": "Give one of the two job classes another name= in its header.",
    "MAGIK_ARG_DECLARATION": "Declare arguments as `name: Mapped[T] = arg(...)` with a T that pydantic can validate.",
    "MAGIK_COLUMN_WITHOUT_TABLE": "Use arg(); mapped_column() needs a __tablename__ of the class's own.",
    "MAGIK_DURATION_INVALID": 'Write durations as text with units: "250ms", "30s", "10m", "1h30m", "7d".',
    "MAGIK_IDEMPOTENT_BY_UNKNOWN": "Name arguments that the class declares in idempotent_by.",
    "MAGIK_IDEMPOTENT_BY_UNSUPPORTED": "A class with a table of its own cannot be keyed: use arg() only.",
    "MAGIK_IDEMPOTENT_BY_REQUIRED": "Name in idempotent_by what identifies one movement of the money.",
    "MAGIK_RETRIES_INVALID": "Correct the Retries(...) declaration; docs/options.md has the table of options.",
    "MAGIK_SCHEDULE_INVALID": 'Write Schedule(every="10m") or Schedule(cron="0 3 * * *", zone="Europe/Paris").',
    "MAGIK_SCHEDULE_CRON_INVALID": "Write the cron as docs/schedules.md has it; nothing beyond that is guessed at.",
    "MAGIK_SCHEDULE_NEVER": "Name a day that there is, and a time that the clocks of the zone show.",
    "MAGIK_SCHEDULE_ZONE_MISSING": 'Give the cron a zone, such as zone="Europe/Paris" or zone="UTC".',
    "MAGIK_SCHEDULE_ZONE_UNKNOWN": "Use a name of the IANA time zone database, letter for letter.",
    "MAGIK_SCHEDULE_ARGS_INVALID": "Give in args= what on_schedule takes, or the job where that is not overridden.",
    # enqueue: raised where the application adds a job, before any SQL
    "MAGIK_ARGS_INVALID": "Correct the named argument; nothing was written.",
    "MAGIK_ARGS_READ_ONLY": "The key of a flushed job cannot change: cancel it and add another.",
    "MAGIK_USE_BULK_ENQUEUE": "Add jobs with session.add(), add_all() or bulk_enqueue(session, SettleBatch, rows).",
    "MAGIK_NOT_ENQUEUEABLE": (
        "Give bulk_enqueue(session, jobs) new jobs, or bulk_enqueue(session, SettleBatch, rows, delay=…) a class and"
        " the arguments of each; a class with its own table goes to session.add()."
    ),
    "MAGIK_SYNC_SESSION_REQUIRED": "Give a Session or scoped_session; with an AsyncSession: await session.run_sync(…).",
    "MAGIK_ONCE_WITHOUT_KEY": "Declare idempotent_by in the class, or give a key: once(session, key, scope=…).",
    "MAGIK_FILTER_INVALID": "Correct what is named; nothing was looked for, and nothing was changed.",
    "MAGIK_SCHEDULE_UNKNOWN": "Use a name that `magik schedules` shows; a worker writes the rows when it starts.",
    "MAGIK_SCHEDULE_PAUSED": "Resume it first: magik schedules resume.",
    "MAGIK_QUEUE_UNKNOWN": "Write the queue as its jobs do; say --create (create=True) for one that is to come.",
    "MAGIK_PRUNE_INVALID": "Give prune a Connection outside of a transaction, and classes that say keep or an age.",
    "MAGIK_UNKNOWN_JOB_READ_ONLY": "Import the module that declares the class, then change or delete the job.",
    # boot: all found at once, exit code 2
    "MAGIK_SETTING_INVALID": "Correct the named option, environment variable or [tool.magik_sa] key.",
    "MAGIK_MODULE_IMPORT_FAILED": "Name a module below the working folder or PYTHONPATH, and mend the error shown.",
    "MAGIK_NO_JOBS": "Name the modules that declare your job classes.",
    "MAGIK_POLICY_UNDECLARED": 'Say policy="system" or policy="<verb>" in the header of the job class.',
    "MAGIK_POLICY_UNKNOWN": 'Define the verb with @policy("<verb>") in an imported module, or say policy="system".',
    "MAGIK_DATABASE_URL_MISSING": "Set MAGIK_DATABASE_URL (or --database-url) to postgresql+psycopg://user@host/database.",
    "MAGIK_DATABASE_URL_INVALID": "Write the URL as postgresql+psycopg://user:password@host:port/database.",
    "MAGIK_DATABASE_ENCODING": "Give it a name of characters that the database has, or use a database in UTF8.",
    "MAGIK_DATABASE_UNREACHABLE": "Check that the server runs and that host, port, user and database are right.",
    "MAGIK_SERVER_READ_ONLY": "Connect to a server that can be written to (the primary).",
    "MAGIK_SCHEDULE_NAME_TAKEN": "Give one of the two schedules another name=, or its class another one in its header.",
    "MAGIK_SCHEMA_MISSING": "Run `alembic upgrade head` (docs/migrations.md has its one line), or `magik migrate`.",
    "MAGIK_SCHEMA_BEHIND": "Run `alembic upgrade head` (docs/migrations.md has its one line), or `magik migrate`.",
    "MAGIK_SCHEMA_INCOMPLETE": "Nothing was changed. Restore what is missing, or drop what is left and install again.",
    "MAGIK_TABLES_UNREADABLE": "Grant the role USAGE on the schema and SELECT on its tables; see docs/grants.md.",
    "MAGIK_GRANT_MISSING": "Grant the role what docs/grants.md has for it.",
    "MAGIK_TABLES_LOCKED": "Let that session end (a long transaction, another migration), then start again.",
    "MAGIK_NO_WORKER": "Start a worker that knows the class; it fires what is due.",
    "MAGIK_MIGRATION_REFUSED": "Mend what the server names, then run it again.",
    "MAGIK_DOWNGRADE_UNCONFIRMED": "Say --yes if that is what you want.",
    "MAGIK_ACT_UNCONFIRMED": "Say --yes if that is what you want.",
    "MAGIK_STATEMENT_REFUSED": "Mend what the server names, then say it again; what was done before stays done.",
    "MAGIK_SCHEMA_AHEAD": "Install the release of magik_sa that this schema was made by, or a newer one.",
    "MAGIK_SESSION_NOT_THREAD_KEYED": "Use a scoped_session without a scopefunc, or the recipe of docs/frameworks.md.",
    "MAGIK_SESSION_INVALID": "Name a sessionmaker or scoped_session as package.module:attribute.",
    "MAGIK_POOL_SIZE_MISMATCH": "Give the engine pool_size + max_overflow of at least as many, or lower --concurrency.",
    "MAGIK_ADVISORY_LOCK_UNAVAILABLE": "Connect directly, or through a pooler in session mode (--locking-url).",
    "MAGIK_HEALTH_UNAVAILABLE": "Give --health-port a free port (or 0), and --health-host an address of this machine.",
    "MAGIK_CONNECTION_BUDGET": "Lower --concurrency or --processes, or raise max_connections on the server.",
    # run: written to last_error of a job
    "MAGIK_JOB_INTERRUPTED": "See why in the worker's log and in the system's: out of memory, or the database.",
    "MAGIK_JOB_TIMEOUT": "Do less in one job, or give its Retries a longer timeout.",
    "MAGIK_POLICY_DENIED": "If the answer has changed meanwhile: magik jobs retry.",
    "MAGIK_POLICY_INVALID": "Have the policy return True or False, by a plain function.",
    "MAGIK_ROW_KEPT": "Look for a trigger, a rule or a policy on the job table that keeps its rows.",
    "MAGIK_SESSION_CLOSED": "Leave the Session of a job open; it is closed when the job has ended.",
    "MAGIK_ON_SCHEDULE_INVALID": "Yield objects of job classes, and leave commit and rollback to the scheduler.",
    # worker: the process ends with a failure code
    "MAGIK_DATABASE_LOST": "The database was out of reach beyond the bound; start the worker again.",
    "MAGIK_THREAD_DIED": "The log or stderr has its traceback. Start the worker again.",
    # tests: raised by magik_sa.testing, in an application's own tests
    "MAGIK_DRAIN_ENDLESS": "Look for a job that adds itself, or give drain a higher limit.",
    "MAGIK_TEST_TARGET_INVALID": "Give a Session, a sessionmaker, a scoped_session or an engine on PostgreSQL.",
    "MAGIK_TEST_SESSION_MISSING": "Define a fixture magik_session that returns the test's Session or sessionmaker.",
}


class MagikError(Exception):
    """What went wrong (`what`), its stable `code`, and what mends it (`remedy`).

    `field` names the argument, option or setting at fault where there is one. The text is one line, and commands no
    terminal, whatever stands in `what`.
    """

    def __init__(self, code: str, what: str, *, field: str | None = None, remedy: str | None = None) -> None:
        self.code, self.what, self.field = code, what, field
        self.remedy = REMEDIES[code] if remedy is None else remedy
        super().__init__(code, what)

    @property
    def docs(self) -> str:
        """Where the documentation speaks of this error."""
        return f"{DOCS}#{self.code.lower()}"

    def __str__(self) -> str:
        return harmless(f"{self.code}: {self.what} {self.remedy} (magik explain {self.code})")


class DeclarationError(MagikError):
    """A job class is declared wrongly; raised while the class is made."""


class EnqueueError(MagikError):
    """A job cannot be added or acted on, `once` be answered, a schedule or queue paused, or rows pruned, as asked.

    Raised in the application. What concerns a job is raised before any SQL for it.
    """


class BootError(MagikError):
    """A worker may not start; `findings` of a boot are reported all at once."""


class BootRefused(MagikError):
    """Boot found at least one fault. `findings` holds every one of them, in the order they were found."""

    def __init__(self, findings: list[MagikError]) -> None:
        self.findings = findings
        super().__init__(findings[0].code, findings[0].what, remedy=findings[0].remedy)
        self.args = (findings,)  # what a copy in another process is made from

    def __str__(self) -> str:
        return "\n".join(str(finding) for finding in self.findings)


class RunError(MagikError):
    """What is recorded in `last_error` when the machinery, not the job, ended a run."""


class JobTimeout(RunError):
    """A job lasted longer than its timeout. `discard_on` may name it; the cause is what the job raised, if anything."""


class WorkerError(MagikError):
    """The worker's process cannot go on."""


class KitError(MagikError):
    """The kit for tests was asked for what it cannot do."""
