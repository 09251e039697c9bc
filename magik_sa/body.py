"""The words in the header and the body of a job class: what is an option, and what only looks like one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from inspect import get_annotations
from types import FunctionType
from typing import Any, Final, NoReturn

from sqlalchemy import Column
from sqlalchemy.orm import MappedColumn

from .errors import DeclarationError
from .meant import meant
from .retries import Retries
from .schedule import Schedule

HEADER: Final = ("policy", "queue", "priority", "name")
BODY: Final = ("retries", "idempotent_by", "discard_on", "keep", "money", "schedule")
METHODS: Final = ("perform", "on_failure", "on_schedule")
LATER: Final[tuple[str, ...]] = ()
ELSEWHERE: Final = {"timeout": "belongs into retries = Retries(timeout=…)"}
ALIASES: Final = {
    "retry": "retries",
    "max_retries": "retries",
    "idempotency_key": "idempotent_by",
    "unique_by": "idempotent_by",
    "cron": "schedule",
}
ALIKE: Final = 0.75  # how alike two words are when the one is taken for a misspelling of the other


def options_in(cls: type, header: Mapping[str, Any], reserved: Collection[str]) -> dict[str, Any]:
    """What `cls` says in its header and its body. Raises ``MAGIK_OPTION_UNKNOWN`` for what it cannot have meant."""
    for word in header:
        if word not in HEADER:
            _refuse(cls, word, _meant(word, {*HEADER, *BODY}))
    for word in _suspects(cls):
        if word in LATER:
            _refuse(cls, word, "is not available in this release")
        if word in ELSEWHERE:
            _refuse(cls, word, ELSEWHERE[word])
        if word in HEADER:
            _refuse(cls, word, "belongs into the header: class Name(Job, …)")
        if word in reserved:
            raise DeclarationError("MAGIK_NAME_RESERVED", f"{cls.__qualname__}.{word}: a Job has a {word}.", field=word)
        _refuse_misspelt(cls, word)
    body = {word: vars(cls)[word] for word in BODY if word in vars(cls)}
    return {**body, **header}


def _suspects(cls: type) -> Iterator[str]:
    """Names that the body gives a value without saying what for: no annotation, no descriptor, not private."""
    hints = get_annotations(cls)
    for word, value in vars(cls).items():
        plain = isinstance(value, FunctionType | classmethod | Retries) or not hasattr(type(value), "__get__")
        known = word in (*BODY, *METHODS) or word in hints or word.startswith("_")
        if plain and not known and not isinstance(value, type | Column | MappedColumn):
            yield word


def _refuse_misspelt(cls: type, word: str) -> None:
    value = vars(cls)[word]
    possible = METHODS if isinstance(value, FunctionType | classmethod) else BODY
    missing = [option for option in possible if option not in vars(cls)]
    near = ALIASES.get(word) or next(iter(meant(word, missing, 1, ALIKE)), None)
    if isinstance(value, Retries | Schedule):
        near = "retries" if isinstance(value, Retries) else "schedule"
    if near in missing:
        _refuse(cls, word, f"did you mean {near}?")


def _meant(word: str, options: Collection[str]) -> str:
    near = ALIASES.get(word) or next(iter(meant(word, options, 1)), None)
    if near in BODY:
        return f"{near} belongs into the body of the class"
    return f"did you mean {near}?" if near else "no such option"


def _refuse(cls: type, word: str, why: str) -> NoReturn:
    raise DeclarationError(
        "MAGIK_OPTION_UNKNOWN", f"{cls.__qualname__}: {word}: {why}{'' if why.endswith('?') else '.'}", field=word
    )
