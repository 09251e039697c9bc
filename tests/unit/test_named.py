"""A misspelt option is told of with its code and what was meant, wherever options are given by name."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest

from magik_sa import DeclarationError, Retries, Schedule, arg, bulk_enqueue
from magik_sa.named import named

MADE: dict[str, Any] = {"Retries": Retries, "Schedule": Schedule, "arg": arg, "bulk_enqueue": bulk_enqueue}


@pytest.mark.parametrize(
    ("name", "word", "said"),
    [
        ("Retries", "time", "there is no such option; did you mean times?"),
        ("Retries", "max", "there is no such option; it takes times, backoff, base, cap, jitter, timeout."),
        ("Schedule", "evry", "there is no such option; did you mean every?"),
        ("Schedule", "timezone", "there is no such option; did you mean zone?"),
        ("Schedule", "_zone", "there is no such option; did you mean zone?"),
        ("arg", "defualt", "there is no such option; did you mean default?"),
        ("bulk_enqueue", "delya", "there is no such option; did you mean delay?"),
    ],
)
def test_a_misspelt_option_is_named_with_what_was_meant(name: str, word: str, said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        MADE[name](**{word: "s3cret"})
    assert (refused.value.code, refused.value.field) == ("MAGIK_OPTION_UNKNOWN", word)
    assert refused.value.what == f"{name}({word}=…): {said}"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Schedule", "Schedule(…): too many positional arguments; by name it takes every, cron, zone, name, args."),
        ("arg", "arg(…): too many positional arguments; by name it takes default, default_factory, sensitive."),
    ],
)
def test_what_is_given_without_a_name_is_told_the_names(name: str, said: str) -> None:
    with pytest.raises(DeclarationError, match="MAGIK_OPTION_UNKNOWN") as refused:
        MADE[name]("10m")
    assert refused.value.what == said


def test_what_is_spelt_right_is_as_ever() -> None:
    assert Retries(3).times == replace(Retries(), times=3).times == 3
    for made in (Retries(times=2, timeout="5s"), Schedule(every="1h", args={"a": 1})):
        assert copy.copy(made) == pickle.loads(pickle.dumps(made)) == made


def test_a_type_error_of_what_is_called_stays_one() -> None:
    @named
    def adding(*, number: int) -> int:
        return number + 1

    with pytest.raises(TypeError):
        adding(number="1")  # type: ignore[arg-type]
