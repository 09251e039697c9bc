"""Groups of commands: one of which each is loaded when it is asked for, one that lists when none is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final

import click

SENTENCE: Final = 500  # characters, at least as long as any
LIKE: Final = 0.75  # of 1: how much of a word has to be there


class Guessing(click.Group):
    """Says which command was probably meant, wherever it stands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first word names."""
        if args and self.get_command(ctx, args[0]) is None:
            root = ctx.find_root()
            typed = [*ctx.command_path.split()[1:], *args]
            meant = " or ".join(f"`magik {path}`" for path in _meant(typed, [*_paths(root.command, root)]))
            ctx.fail(f"No such command {args[0]!r}{f'; did you mean {meant}?' if meant else '.'}")
        return super().resolve_command(ctx, args)


def _paths(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """Every command below this one, as its words are typed."""
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(ctx):
        below = command.get_command(ctx, name)
        words = [*_paths(below, ctx)] if below else []
        yield from (f"{name} {word}" for word in words)
        if not words:
            yield name


def _meant(typed: list[str], paths: list[str]) -> list[str]:
    """Those that look like the first words, or else those of which the last looks like the first word that is wrong."""
    words = [word for word in typed if not word.startswith("-")][:2]
    if close := get_close_matches(" ".join(words), paths, 3, LIKE):
        return close
    ends = {path.split()[-1] for path in paths}
    alike = [end for word in reversed(words) for end in get_close_matches(word, ends, 3, LIKE)]
    return [path for path in paths if path.split()[-1] in alike][:3]


class Late(Guessing):
    """`modules` says where each command stands, and what it does, so that none is loaded to list them.

    `command` is its name there, or what follows a colon.
    """

    def __init__(self, *args: Any, modules: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*args, **options)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click asks with it)
        """Every command there is."""
        return sorted(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load one of them."""
        found: click.Command | None = None
        if cmd_name in self._modules:
            module, _, name = self._modules[cmd_name][0].partition(":")
            found = getattr(import_module(module), name or "command")
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """All of them, and what each does."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._modules[name][1]) for name in self.list_commands(ctx)])


class Listed(Guessing):
    """Without a command's name, it is `list`."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """All of them, each with the whole of its first sentence."""
        with formatter.section("Commands"):
            named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
            formatter.write_dl([(name, each.get_short_help_str(SENTENCE)) for name, each in named if each])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options that stand where a command would are those of `list`."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)
