"""The worker's process: options, boot, signals, and how it ends.

0  drained after SIGTERM or SIGINT (or stopped before it was ready)
2  refused to boot, or an option was wrong
3  the shutdown timeout passed, or a second signal came: running jobs were left to the database to free
4  the database was out of reach beyond the bound, or a part of the worker ended by itself
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any, NoReturn

import click

from ..errors import BootRefused, MagikError
from ..logs import say, to_stderr
from .signals import Signals
from .worker import Worker

DRAINED, REFUSED, DEADLINE, LOST = 0, 2, 3, 4
WATCH_EVERY = 1.0  # seconds between two looks at the threads
READY_EVERY = 0.02  # seconds between two until the worker listens


class OneLine(click.Command):
    """Says what is wrong with an option on one line, with a code, as everything else here."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            return super().main(*args, **{**extra, "standalone_mode": False})
        except click.ClickException as error:
            click.echo(f"MAGIK_SETTING_INVALID: {error.format_message()} See --help.", err=True)
            sys.exit(REFUSED)


@click.command(cls=OneLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("modules", nargs=-1)
@click.option("--database-url", help="postgresql+psycopg://user@host/database [MAGIK_DATABASE_URL]")
@click.option("--locking-url", help="where the locks are held, if --database-url goes through a pooler")
@click.option("--queue", "queues", multiple=True, help="a queue to work; may be repeated [default]")
@click.option("--concurrency", help="threads, and connections, for jobs [10]")
@click.option("--session", help="package.module:attribute of the application's sessionmaker or scoped_session")
@click.option("--poll-interval", help="how long a lost wake-up may cost [5s]")
@click.option("--shutdown-timeout", help="how long running jobs may take after SIGTERM [25s]")
@click.option("--database-timeout", help="how long to try to reach a lost database before giving up [5m]")
@click.option("--log-format", help="text or json [text]")
@click.option("--app-name", help="what pg_stat_activity shows [magik_sa]")
@click.pass_obj
def command(signals: Signals, /, **options: Any) -> NoReturn:
    """Run the jobs that MODULES declare, until SIGTERM or SIGINT.

    Every option may also stand in the environment (MAGIK_POLL_INTERVAL) or under [tool.magik_sa] in pyproject.toml.
    """
    try:
        worker = Worker(**{name: value for name, value in options.items() if value != ()})
        worker.boot()
    except BootRefused as refused:
        refuse(refused.findings)
    to_stderr(worker.settings.log_format)  # after the application's modules, which may have configured logging
    signals.arm()  # before anything is claimed, so that whatever was claimed is drained
    worker.launch()
    end(work(worker, signals))


def refuse(findings: list[MagikError]) -> NoReturn:
    """One line on stderr for each thing that stands against working."""
    for finding in findings:
        click.echo(str(finding), err=True)
    end(REFUSED)


def work(worker: Worker, signals: Signals) -> int:
    """Watch the threads until a signal comes, then drain."""
    while not signals.wait(WATCH_EVERY if worker.ready(0) else READY_EVERY):
        if worker.failed():
            click.echo(str(worker.failure()), err=True)
            return LOST
    return drain(worker, signals)


def drain(worker: Worker, signals: Signals) -> int:
    """Let running jobs end within the shutdown timeout; a second signal ends the waiting."""
    say(logging.INFO, "draining", running=len(worker.locker.book))
    worker.stop()
    deadline = time.monotonic() + worker.settings.shutdown_timeout.total_seconds()
    while (left := deadline - time.monotonic()) > 0 and not (signals.wait(0) and worker.locker.book):
        if worker.wait(min(left, 0.05)):
            say(logging.INFO, "drained")
            return LOST if worker.locker.failure else DRAINED
    worker.abandon()
    return DEADLINE


def end(code: int) -> NoReturn:
    """Leave at once: the sockets close, Postgres rolls back and unlocks. No thread of a job can hold the process up."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
