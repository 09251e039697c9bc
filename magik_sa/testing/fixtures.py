"""What the fixtures `magik_drain` and `magik_enqueued` are: `drain` and `enqueued` that know where."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from ..enqueue import Job
from .draining import LIMIT, Ran
from .found import Found

J = TypeVar("J", bound=Job)


class Drain(Protocol):
    """`drain` on `magik_session`."""

    def __call__(self, *, queue: str | None = None, limit: int = LIMIT, raises: bool = False) -> list[Ran]:
        """Run every job that is due."""
        ...


class Enqueued(Protocol):
    """`enqueued` on `magik_session`."""

    def __call__(self, cls: type[J], **having: Any) -> Found[J]:
        """The jobs of `cls` that wait."""
        ...
