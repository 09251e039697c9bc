"""Jobs that fail in every way that is too large, too deep, endless or hostile."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Never

from sqlalchemy.orm import Mapped, Session

from magik_sa import Discard, Job, Retries, arg, around_perform, policy
from tests.tools.effects import record

HUGE = 60_000_000  # bytes
if "pytest" not in sys.modules:  # in a worker alone
    sys.setrecursionlimit(20_000)
    threading.stack_size(256 * 2**20)


def huge() -> str:
    """So many bytes of four-byte characters."""
    return "🦄" * (HUGE // 4)


class Endless(Exception):
    """Its text never comes to an end."""

    def __str__(self) -> str:
        while True:
            pass


class Recursive(Exception):
    """Its text asks for itself."""

    def __str__(self) -> str:
        return f"({self})"


class Liar(str):
    """Text of which nothing can be asked."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Never:
        raise RuntimeError

    def encode(self, *args: Any) -> Never:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError


class Lying(Exception):
    """Its text is such a one."""

    def __str__(self) -> str:
        return Liar("told all the same")


class Hiding(Exception):
    """Nothing that it came from can be asked for."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError


def message() -> None:
    raise ValueError(huge())


def frames(depth: int = 5_000) -> None:
    if depth:
        frames(depth - 1)
    raise ValueError("at the bottom")


def chain(links: int = 200) -> None:
    try:
        if links:
            chain(links - 1)
    except ValueError as error:
        raise ValueError(f"link {links}") from error
    raise ValueError("the first")


def circle() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def group() -> None:
    raise ExceptionGroup("many", [ExceptionGroup("more", [ValueError(str(n)) for n in range(1_000)])] * 1_000)


def notes() -> None:
    error = ValueError("noted")
    error.add_note(huge())
    for n in range(100_000):
        error.add_note(str(n))
    raise error


def no_notes() -> None:
    error = ValueError("noted")
    vars(error)["__notes__"] = 5
    raise error


def named() -> None:
    raise type("Named" * 2_000_000, (Exception,), {})("by a long name")


def nameless() -> None:
    raise type("", (Exception,), {})


def nowhere() -> None:
    """In a file whose name is no text, as a template's may be."""

    def here() -> None:
        raise ValueError("nowhere")

    code: CodeType = here.__code__.replace(co_filename="\ud800\0")
    exec(code)


def hostile(kind: type[Exception]) -> Callable[[], None]:
    def fail() -> None:
        raise kind

    return fail


WAYS: dict[str, Callable[[], None]] = {
    "message": message,
    "frames": frames,
    "chain": chain,
    "circle": circle,
    "group": group,
    "notes": notes,
    "no notes": no_notes,
    "named": named,
    "nameless": nameless,
    "nowhere": nowhere,
    "recursive": hostile(Recursive),
    "lying": hostile(Lying),
    "hiding": hostile(Hiding),
    "endless": hostile(Endless),
}


class ImmenseFailing(Job, policy="system"):
    """Fails in one of these ways, or in the words of its statement."""

    retries = Retries(times=1, backoff="constant", base="1h", cap="1h")
    way: Mapped[str] = arg()

    def perform(self, session: Session) -> None:
        record(self, self.way)
        if self.way == "statement":
            session.connection().exec_driver_sql(f"SELECT '{huge()[:1_000_000]}' FROM nowhere")
        elif self.way == "discard":
            raise Discard(huge())
        WAYS[self.way]()


@policy("immense")
def denies(job: Elsewhere, session: Session) -> bool:
    """Fails with all it has to say."""
    if job.where == "policy":
        raise ValueError(huge())
    return True


class Elsewhere(Job, policy="immense"):
    """Fails with a huge text, but not in perform alone."""

    retries = Retries(times=0)
    where: Mapped[str] = arg()

    def perform(self, session: Session) -> None:
        record(self, self.where)
        if self.where == "on_failure":
            raise ValueError("in perform")

    def on_failure(self, session: Session, error: BaseException) -> None:
        if self.where == "on_failure":
            raise ValueError(huge())


@around_perform
def fails(job: Job, session: Session) -> Iterator[None]:
    """Around everything that says so."""
    yield
    if isinstance(job, Elsewhere) and job.where == "around":
        raise ValueError(huge())


class Marker(Job, policy="system"):
    """Shows that the worker works."""

    def perform(self, session: Session) -> None:
        record(self)
