"""The worker's command line: what is asked for, and whether one process does it or several under a supervisor."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from ..errors import BootRefused, MagikError
from ..harmless import harmless
from ..logs import always
from ..settings import Settings, read
from .ending import REFUSED, refuse
from .signals import Signals


class OneLine(click.Command):
    """Says what is wrong with an option on one line, with a code, as everything else here."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            return super().main(*args, **{**extra, "standalone_mode": False})
        except click.ClickException as error:
            click.echo(harmless(f"MAGIK_SETTING_INVALID: {error.format_message()} See --help."), err=True)
            sys.exit(REFUSED)


@click.command(cls=OneLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("modules", nargs=-1)
@click.option("--database-url", help="postgresql+psycopg://user@host/database [MAGIK_DATABASE_URL]")
@click.option("--locking-url", help="where the locks are held, if --database-url goes through a pooler")
@click.option("--queue", "queues", multiple=True, help="a queue to work; may be repeated [default]")
@click.option("--concurrency", help="threads, and connections, for jobs [10]")
@click.option("--processes", help="processes under one supervisor, each with so many threads [1]")
@click.option("--session", help="package.module:attribute of the application's sessionmaker or scoped_session")
@click.option("--poll-interval", help="how long a lost wake-up may cost [5s]")
@click.option("--shutdown-timeout", help="how long running jobs may take after SIGTERM [25s]")
@click.option("--database-timeout", help="how long to try to reach a lost database before giving up [5m]")
@click.option("--maintenance", is_flag=True, default=None, help="VACUUM and prune the tables, one worker at a time")
@click.option("--end-idle-transactions", help="with --maintenance: end sessions that idle in a transaction for so long")
@click.option("--log-format", help="text or json [the application's own logging, or text]")
@click.option("--health-port", help="answer GET /live and GET /ready there; 0: at any free port [none]")
@click.option("--health-host", help="the address to listen at for that [127.0.0.1]")
@click.option("--app-name", help="what pg_stat_activity shows [magik_sa]")
@click.option("--supervised", type=int, hidden=True)  # the descriptor of the tie to a supervisor
@click.pass_context
def command(context: click.Context, /, supervised: int | None, **options: Any) -> NoReturn:
    """Run the jobs that MODULES declare, until SIGTERM or SIGINT.

    Every option may also stand in the environment (MAGIK_POLL_INTERVAL) or under [tool.magik_sa] in pyproject.toml.
    """
    signals: Signals = context.obj
    try:
        told = read({name: value for name, value in options.items() if value != ()})
    except MagikError as error:
        refuse(findings(error))
    if supervised is None and told.processes > 1:
        from .supervisor import supervise

        supervise(told, [*words(context)], signals)
    work(told, signals, supervised)


def work(told: Settings, signals: Signals, supervised: int | None) -> NoReturn:
    """Be the worker, or one of several: then the port for health is the supervisor's."""
    tie = None
    if supervised is not None:
        from .tie import Tie

        always(pid=os.getpid())
        told = told.model_copy(update={"health_port": None})
        tie = Tie(supervised, signals.told)
        tie.start()
    try:
        from .process import run
    except MagikError as error:  # the schema's name is read from pyproject.toml while the tables are declared
        refuse(findings(error), told.log_format == "json")
    run(told, signals, tie)


def findings(error: MagikError) -> list[MagikError]:
    """What is to be told of it, a line each."""
    return error.findings if isinstance(error, BootRefused) else [error]


def words(context: click.Context) -> Iterator[str]:
    """What was said on the command line, to be said once more."""
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if isinstance(option, click.Option) and value is not None:
            for each in value if option.multiple else [value]:
                yield option.opts[0] if option.is_flag else f"{option.opts[0]}={each}"
    yield "--"
    yield from context.params["modules"]
