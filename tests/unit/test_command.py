"""What a supervisor was told on its command line, each of its processes is told once more."""

from __future__ import annotations

from typing import Any

import pytest

from magik_sa.worker.command import command, words


def understood(argv: list[str]) -> dict[str, Any]:
    return command.make_context("worker", [*argv]).params


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["shop.jobs", "--processes", "3", "shop.more"],
        ["--queue", "a b", "--queue=-c", "--queue", "", "--", "--odd"],
        ["--maintenance", "--end-idle-transactions", "10m", "--app-name", 'it\'s "mine"', "a", "b"],
        ["--queue", "\udcff", "--database-url", "postgresql://u@h/d?options=--x%3dy"],
    ],
)
def test_the_words_are_understood_alike_when_they_are_said_again(argv: list[str]) -> None:
    again = [*words(command.make_context("worker", [*argv]))]
    assert understood(again) == understood(argv)
    assert understood(["--supervised=7", *again]) == {**understood(argv), "supervised": 7}
