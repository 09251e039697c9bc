"""Whether a function of the application's can be called as it will be, told when it is handed over and not at night."""

from __future__ import annotations

from inspect import getattr_static, isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from typing import Any


def misfit(function: Any, *given: str) -> str | None:
    """Why calling it with what is `given` would not do its work, to be said after its name; None where it would."""
    if not callable(function):
        return "is no function"
    kinds = (iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)
    if any(is_kind(called) for called in (function, getattr(function, "__call__", None)) for is_kind in kinds):  # noqa: B004
        return "is async or a generator, which does nothing when it is called"
    return takes_not(function, *given)


def takes_not(function: Any, *given: str) -> str | None:
    """The part of `misfit` that looks at the parameters only."""
    try:
        signature(function).bind(*given)
    except TypeError:
        return f"cannot be called with ({', '.join(given)})"
    except ValueError:  # of a function in C that does not tell its parameters
        return None
    return None


def method(cls: type, name: str) -> Any:
    """What ``job.name`` would be for an object of `cls`, without one: self is bound already where there is a self."""
    found = getattr_static(cls, name)
    return found.__get__(cls, cls) if hasattr(type(found), "__get__") else found
