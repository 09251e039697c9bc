"""``magik jobs …``: what an operator asks about jobs. Each command stands in a module of its own."""

from __future__ import annotations

from typing import Final

import click

from .late import Late

COMMANDS: Final = {
    "status": "magik_sa.cli.status",
}


@click.group("jobs", cls=Late, modules=COMMANDS, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Look at jobs."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
