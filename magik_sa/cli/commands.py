"""Which commands there are. Each one stands in a module of its own that is loaded when it is asked for."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

import click

from ..errors import BootError, MagikError
from .output import refuse

# Where each stands; `command` is its name there.
COMMANDS: Final = {
    "migrate": "magik_sa.cli.migrate",
    "worker": "magik_sa.worker.process",
}
INTERRUPTED: Final = 130  # what a shell says of a program that SIGINT ended


class Magik(click.Group):
    """Loads its commands late, and says what is wrong on one line, with a code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click asks with it)
        """Every command there is."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load one of them."""
        found: click.Command | None = None
        if cmd_name in COMMANDS:
            found = import_module(COMMANDS[cmd_name]).command
        return found

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


@click.group(cls=Magik, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(import_module("magik_sa").__version__, prog_name="magik_sa")
@click.pass_context
def magik(ctx: click.Context) -> None:
    """The job queue in your own Postgres."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
