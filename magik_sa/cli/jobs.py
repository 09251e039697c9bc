"""``magik jobs …``: what an operator asks about jobs. Each command stands in a module of its own."""

from __future__ import annotations

from typing import Final

import click

from .late import Late

COMMANDS: Final = {
    "cancel": ("magik_sa.cli.acts:cancel", "Delete jobs."),
    "discard": ("magik_sa.cli.acts:discard", "Make live jobs dead letters, with a reason."),
    "list": (
        "magik_sa.cli.listed",
        "List jobs: live ones as workers will take them, then the latest dead letters; finished ones if asked for.",
    ),
    "retry": ("magik_sa.cli.acts:retry", "Run dead letters and failing jobs again, at once and with all their tries."),
    "run-now": (
        "magik_sa.cli.acts:run_now",
        "Make scheduled jobs due; with --state errored, those that wait after a failure.",
    ),
    "show": ("magik_sa.cli.shown", "Show one job: its row, its last error, and with --args its arguments."),
    "status": (
        "magik_sa.cli.status",
        "What is ready, running, scheduled, errored and expired in each queue, and who works it.",
    ),
}


@click.group("jobs", cls=Late, modules=COMMANDS, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Look at jobs, and act on them."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
