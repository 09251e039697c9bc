"""What was probably meant by a misspelt word."""

from __future__ import annotations

import pytest

from magik_sa.meant import meant, near


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("paiments", {"payments", "shipments", "mail"}, ["payments"]),
        ("mail2", {"mail1", "mail3", "main"}, ["mail3", "mail1"]),
        ("nope", {"payments", "mail"}, []),
        ("mail", set(), []),
    ],
)
def test_the_nearest_and_what_is_about_as_near(word: str, known: set[str], found: list[str]) -> None:
    assert meant(word, known) == found


def test_it_ends_a_sentence() -> None:
    assert near("paiments", ["payments"]) == "; did you mean 'payments'?"
    assert near("nope", ["payments"]) == "."
