"""Many jobs of one class, out of their arguments: rows of text, of which no object is made first.

All that they have beside their arguments is the same, and is taken from one job that is built of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import class_mapper
from sqlalchemy.orm.instrumentation import manager_of_class

from .attribute import coded
from .chunk import Given, ask_for_moments, at, chunks, insert, iterated, refused
from .errors import EnqueueError
from .job import OPTIONS, Job, declared
from .sealed import SealedText
from .unnest import INSERT_ALIKE, parameters_alike, row_of
from .uuid7 import uuid7


class Alike:
    """What becomes of the arguments of new jobs of a class, all with the same `options`."""

    def __init__(self, cls: type[Job], options: Mapping[str, Any]) -> None:
        if cls not in declared().values():
            raise refused("jobs", f"is {cls.__name__}, and no class of jobs")
        self._cls, self._options = cls, {name: value for name, value in options.items() if value is not None}
        self._template: Given | None = None
        secret = any(argument.sensitive for argument in cls.__magik__.arguments.values())
        self._sealed: Callable[[str], str] = SealedText if secret else str

    @property
    def are_plain(self) -> bool:
        """Whether the rows are all that there is to these jobs: no key, no table and no constructor of their own."""
        cls = self._cls
        return not cls.__magik__.idempotent_by and len(class_mapper(cls).tables) == 1 and _built_by_us(cls)

    def built(self, arguments: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Job]]:
        """One by one as jobs, each with its place."""
        for place, given in _placed(arguments):
            yield place, self._job(place, given)

    def rows(self, arguments: Iterable[Mapping[str, Any]]) -> Iterator[list[str]]:
        """The JSON of a chunk's arguments, chunk by chunk."""
        return chunks((self._args(place, given) for place, given in _placed(arguments)), len)

    def insert(self, connection: Connection, rows: list[str], wake: bool) -> int:
        """Insert a chunk; how many there are now."""
        assert self._template is not None
        ask_for_moments(connection, [self._template])
        values = parameters_alike(self._template.row, rows, uuid7.several(len(rows)))
        return insert(connection, INSERT_ALIKE, values, wake)

    def _args(self, place: str, given: Mapping[str, Any]) -> str:
        if self._template is None:
            job = self._job(place, given)
            self._template = Given(place, job, row_of(job))
        try:
            args = coded(self._cls.__magik__, given)
        except EnqueueError as error:
            raise at(place, error) from None
        return (row_of(self._job(place, given))["args"] or "") if args is None else self._sealed(args)

    def _job(self, place: str, given: Mapping[str, Any]) -> Job:
        for name in sorted(given.keys() & OPTIONS):
            raise refused(place, f"has {name}, which is said for all: bulk_enqueue(…, {name}=…)")
        try:
            return self._cls(**given, **self._options)
        except EnqueueError as error:
            raise at(place, error) from None


def _built_by_us(cls: type[Job]) -> bool:
    """Whether no class between this one and `Job` has a constructor. SQLAlchemy puts one of its own around each."""
    made = cls.__init__
    while (inner := getattr(made, "_sa_original_init", None)) is not None:
        made = inner
    return made is manager_of_class(Job).original_init


def _placed(arguments: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for position, given in enumerate(iterated(arguments, "arguments")):
        place = f"arguments[{position}]"
        if not isinstance(given, Mapping):
            raise refused(place, f"is a {type(given).__name__} and no mapping of arguments")
        yield place, given
