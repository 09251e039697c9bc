"""A group of commands of which each is loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class Late(click.Group):
    """`modules` says where each command stands; `command` is its name there."""

    def __init__(self, *args: Any, modules: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click asks with it)
        """Every command there is."""
        return sorted(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load one of them."""
        found: click.Command | None = None
        if cmd_name in self._modules:
            found = import_module(self._modules[cmd_name]).command
        return found
