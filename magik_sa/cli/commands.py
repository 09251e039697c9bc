"""Which commands there are. Each one stands in a module of its own that is loaded when it is asked for."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

import click

from ..errors import BootError, MagikError
from .late import Late
from .output import refuse, seen_enough

# Where each stands, `command` being its name there, and the first sentence of its help.
COMMANDS: Final = {
    "check": ("magik_sa.cli.check", "Check what MODULES declare as a worker does when it starts."),
    "doctor": (
        "magik_sa.cli.doctor",
        "What is wrong with the database under the queue, or will be, and what mends it.",
    ),
    "explain": ("magik_sa.cli.explain", "What an error's CODE means, and what mends it."),
    "jobs": ("magik_sa.cli.jobs", "Look at jobs, and act on them."),
    "migrate": ("magik_sa.cli.migrate", "Make or upgrade the tables."),
    "prune": (
        "magik_sa.cli.prune",
        "Remove finished rows that the classes in MODULES have kept for long enough, and what dead workers left.",
    ),
    "queues": ("magik_sa.cli.queues", "List queues, pause and resume them."),
    "schedules": ("magik_sa.cli.schedules", "List schedules, pause and resume them, fire one."),
    "worker": ("magik_sa.worker.command", "Run the jobs that MODULES declare, until SIGTERM or SIGINT."),
    "workers": (
        "magik_sa.cli.workers",
        "The workers that are alive, by their database session, and the jobs that each runs.",
    ),
}
INTERRUPTED: Final = 130  # what a shell says of a program that SIGINT ended


class Magik(Late):
    """Says what is wrong on one line, with a code."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run, and leave with an exit code."""
        as_json = "--json" in (args[0] if args else extra.get("args") or sys.argv[1:])
        try:
            super().main(*args, **{**extra, "standalone_mode": False})
        except click.ClickException as error:
            path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "magik"
            what = error.format_message()
            refuse(BootError("MAGIK_SETTING_INVALID", what, remedy=f"See {path} --help."), as_json)
        except BrokenPipeError:  # of a help text
            seen_enough()
        except click.Abort:
            sys.exit(INTERRUPTED)
        except MagikError as error:  # the schema's name is read from pyproject.toml while the tables are declared
            refuse(error, as_json)


@click.group(
    cls=Magik, modules=COMMANDS, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(import_module("magik_sa").__version__, prog_name="magik_sa")
@click.pass_context
def magik(ctx: click.Context) -> None:
    """The job queue in your own Postgres.

    An error begins with its code: magik explain CODE says more of it.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
