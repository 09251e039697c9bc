"""What was probably meant by a word that is none of those that there are."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from typing import Final

LIKE: Final = 0.6  # how alike two words have to be, of 1
BESIDE: Final = 0.1  # how much less alike than the nearest a further one may be
MOST: Final = 3


def meant(word: str, known: Iterable[str], most: int = MOST, like: float = LIKE) -> list[str]:
    """The nearest of the known words, and those that are about as near."""
    found = get_close_matches(word, sorted(known), most, like)
    return [each for each in found if _alike(word, each) >= _alike(word, found[0]) - BESIDE]


def near(word: str, known: Iterable[str], most: int = MOST, like: float = LIKE) -> str:
    """The end of a sentence on such a word: the question whether one of these is meant, or a full stop."""
    found = " or ".join(map(repr, meant(word, known, most, like)))
    return f"; did you mean {found}?" if found else "."


def _alike(word: str, other: str) -> float:
    return SequenceMatcher(None, other, word).ratio()
