"""Options that are given by name: of one that does not exist it is said what was meant, as in the header of a class."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

from .errors import DeclarationError
from .meant import meant

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def named(function: F) -> F:
    """Have `function` raise ``MAGIK_OPTION_UNKNOWN`` where it is called with what it does not take."""
    return _checked(function, function.__name__)


def named_in(cls: type[T]) -> type[T]:
    """The same of a class and how its objects are made."""
    cls.__init__ = _checked(cls.__init__, cls.__name__)  # type: ignore[method-assign]
    return cls


def _checked(function: F, name: str) -> F:
    takes = signature(function)
    options = [option for option in takes.parameters if option != "self"]

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        for word in given:
            if word not in options:
                raise _unknown(name, word, options)
        try:
            takes.bind(*args, **given)
        except TypeError as error:
            why = str(error)
        else:
            return function(*args, **given)
        raise DeclarationError("MAGIK_OPTION_UNKNOWN", f"{name}(…): {why}; by name it takes {', '.join(options)}.")

    return call  # type: ignore[return-value]


def _unknown(name: str, word: str, options: list[str]) -> DeclarationError:
    near = " or ".join(meant(word, options))
    hint = f"did you mean {near}?" if near else f"it takes {', '.join(options)}."
    return DeclarationError("MAGIK_OPTION_UNKNOWN", f"{name}({word}=…): there is no such option; {hint}", field=word)
