"""How often a failed job is tried again, and how long it waits before each try."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from .duration import duration, fault
from .errors import DeclarationError
from .named import named_in

MOST_TIMES: Final = 1_000_000
_DOUBLINGS: Final = 60  # far beyond any cap, and far below what a float can hold

Named = Literal["exponential", "linear", "constant"]
Backoff = Named | Callable[[int], timedelta | str]

_GROWTH: Final[dict[str, Callable[[int], float]]] = {
    "exponential": lambda tries: 2.0 ** min(tries - 1, _DOUBLINGS),
    "linear": lambda tries: float(tries),
    "constant": lambda _: 1.0,
}


@named_in
@dataclass(frozen=True)
class Retries:
    """A job starts ``1 + times`` times at most; between two tries it waits `base`, growing by `backoff` up to `cap`.

    `jitter` is the share of each wait that is left to chance and taken off it, so that jobs that failed together do
    not all come back together. `backoff` may be a function from the number of failed tries to a duration; where it
    raises or returns something else the job waits for `cap`, because the outcome of a job must be written in any case.
    `timeout` is how long one try may last; it then counts as failed (`JobTimeout`). None: as long as it wants.
    Raises `DeclarationError` ``MAGIK_RETRIES_INVALID`` naming the field that is wrong.
    """

    times: int = 5
    backoff: Backoff = "exponential"
    base: timedelta | str = "5s"
    cap: timedelta | str = "1h"
    jitter: float = 0.1
    timeout: timedelta | str | None = None

    def __post_init__(self) -> None:
        if type(self.times) is not int or not 0 <= self.times <= MOST_TIMES:
            raise _invalid("times", self.times, f"a whole number from 0 to {MOST_TIMES}")
        if not callable(self.backoff) and self.backoff not in _GROWTH:
            raise _invalid("backoff", self.backoff, f"one of {', '.join(_GROWTH)}, or a function")
        if type(self.jitter) not in (int, float) or not 0 <= self.jitter <= 1:
            raise _invalid("jitter", self.jitter, "a number from 0 to 1")
        for field in ("base", "cap") if self.timeout is None else ("base", "cap", "timeout"):
            object.__setattr__(self, field, _span(field, getattr(self, field)))
        if not callable(self.backoff) and _seconds(self.base) > _seconds(self.cap):
            raise _invalid("cap", str(self.cap), "at least as long as base")

    def delay(self, error_count: int) -> timedelta:
        """The wait after the `error_count`-th failed try, the first being 1. Never above `cap`, whatever the number."""
        longest = _seconds(self.cap)
        seconds = min(max(self._grown(max(error_count, 1)), 0.0), longest)
        return timedelta(seconds=seconds * (1 - self.jitter * random.random()))

    def exhausted(self, error_count: int) -> bool:
        """Whether a job that failed `error_count` times has used up its tries."""
        return error_count > self.times

    def _grown(self, tries: int) -> float:
        if not callable(self.backoff):
            return _seconds(self.base) * _GROWTH[self.backoff](tries)
        try:
            return _seconds(duration(self.backoff(tries), field="backoff", zero=True))
        except BaseException:  # SystemExit, too
            return _seconds(self.cap)


def _span(field: str, value: object) -> timedelta:
    try:
        return duration(value, field=field)
    except DeclarationError as error:
        what = f"Retries({field}={value!r}): {fault(error)}."
        raise DeclarationError("MAGIK_RETRIES_INVALID", what, field=field, remedy=error.remedy) from None


def _seconds(span: timedelta | str) -> float:
    assert isinstance(span, timedelta)
    return span.total_seconds()


def _invalid(field: str, value: object, wanted: str) -> DeclarationError:
    return DeclarationError("MAGIK_RETRIES_INVALID", f"Retries({field}={value!r}): has to be {wanted}.", field=field)
