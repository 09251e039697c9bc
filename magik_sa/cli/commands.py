"""Which commands there are. Each one stands in a module of its own that is loaded when it is asked for."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

import click

from ..errors import BootError, MagikError
from .late import Late
from .output import refuse

# Where each stands; `command` is its name there.
COMMANDS: Final = {
    "doctor": "magik_sa.cli.doctor",
    "jobs": "magik_sa.cli.jobs",
    "migrate": "magik_sa.cli.migrate",
    "worker": "magik_sa.worker.process",
}
INTERRUPTED: Final = 130  # what a shell says of a program that SIGINT ended


class Magik(Late):
    """Says what is wrong on one line, with a code."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run, and leave with an exit code."""
        try:
            super().main(*args, **{**extra, "standalone_mode": False})
        except click.ClickException as error:
            refuse(BootError("MAGIK_SETTING_INVALID", error.format_message(), remedy="See magik --help."))
        except click.Abort:
            sys.exit(INTERRUPTED)
        except MagikError as error:  # the schema's name is read from pyproject.toml while the tables are declared
            refuse(error)


@click.group(
    cls=Magik, modules=COMMANDS, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(import_module("magik_sa").__version__, prog_name="magik_sa")
@click.pass_context
def magik(ctx: click.Context) -> None:
    """The job queue in your own Postgres."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
