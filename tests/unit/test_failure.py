"""Whatever an exception says, its text is bounded and storable."""

from __future__ import annotations

import pytest

from magik_sa.failure import LONGEST_TEXT, cut, describe, headline


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", b"\xff\xfe".decode("utf-8", "surrogateescape"), "日本" * 4_000])
def test_every_text_is_storable(text: str) -> None:
    stored = describe(raised(ValueError(text)))
    assert "\0" not in stored
    assert stored.encode("utf-8")
    assert stored.startswith("ValueError: ")


def test_what_cannot_be_stored_stays_visible() -> None:
    assert headline(ValueError("a\x00b\ud800")) == r"ValueError: a\x00b\ud800"


def test_an_exception_whose_text_raises() -> None:
    assert describe(raised(Unspeakable())).startswith("Unspeakable: <its text could not be made: RuntimeError>")


def test_sixty_megabytes_are_cut() -> None:
    stored = describe(raised(ValueError("x" * 60_000_000)))
    assert len(stored.encode()) < LONGEST_TEXT
    assert "60,000,000 characters in all" in stored


def test_five_thousand_frames_are_cut() -> None:
    def deeper() -> None:
        deeper()

    with pytest.raises(RecursionError) as caught:
        deeper()
    assert len(describe(caught.value).encode()) <= LONGEST_TEXT + 100


def test_a_chain_of_two_hundred_is_cut() -> None:
    error: BaseException | None = None
    for n in range(200):
        link = ValueError(str(n))
        link.__cause__ = error
        error = link
    assert error is not None
    stored = describe(error)
    assert stored.count("caused by") <= 4
    assert "more causes" in stored


def test_the_place_is_told() -> None:
    assert "test_failure.py" in describe(raised(KeyError("x")))


@pytest.mark.parametrize("limit", range(12))
def test_a_cut_never_splits_a_character(limit: int) -> None:
    assert cut("é日𝄞x", limit).split("…")[0] in {"", "é", "é日", "é日𝄞", "é日𝄞x"}
