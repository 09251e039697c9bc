"""Many jobs of one class, out of their arguments: rows of text, of which no object is made first.

All that they have beside their arguments is the same, and is taken from a job that is built of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from datetime import datetime
from itertools import chain, groupby
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.orm import class_mapper
from sqlalchemy.orm.instrumentation import manager_of_class

from .attribute import coded
from .carried import carried
from .chunk import Given, ask_for_moments, at, chunks, insert, iterated, refused
from .columns import delay_of
from .errors import EnqueueError
from .job import OPTIONS, Job, declared
from .sealed import SealedText
from .unnest import INSERT_ALIKE, parameters_alike, row_of
from .uuid7 import uuid7

SQLALCHEMY: Final = {"sqlalchemy.orm.mapper"}


class Alike:
    """What becomes of the arguments of new jobs of a class, all with the same `options`."""

    def __init__(self, cls: type[Job], options: Mapping[str, Any]) -> None:
        if cls not in declared().values():
            raise refused("jobs", f"is {cls.__name__}, and no class of jobs")
        self._cls, self._options = cls, {name: value for name, value in options.items() if value is not None}
        secret = any(argument.sensitive for argument in cls.__magik__.arguments.values())
        self._sealed: Callable[[str], str] = SealedText if secret else str

    @property
    def are_plain(self) -> bool:
        """Whether rows are all that there is to these jobs, and one time is that of all.

        Not where there is a key, a table or a constructor of their own, or an expression like ``now() + random() * …``.
        """
        run_at = self._options.get("run_at")
        one_time = run_at is None or isinstance(run_at, datetime) or delay_of(run_at) is not None
        own_table = len(class_mapper(self._cls).tables) > 1
        return one_time and not (self._cls.__magik__.idempotent_by or own_table) and _built_by_us(self._cls)

    def built(self, arguments: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Job]]:
        """One by one as jobs, each with its place."""
        for place, given in _placed(arguments):
            yield place, self._job(place, given)

    def rows(self, arguments: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Given, list[str]]]:
        """The JSON of a chunk's arguments, with the job that was built of the first, chunk by chunk."""
        for _, alike in groupby(self._each(arguments), key=lambda each: id(each[0])):
            template, first = next(alike)
            for rows in chunks(chain([first], (args for _, args in alike)), len):
                yield template, rows

    def _each(self, arguments: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Given, str]]:
        """What the arguments come from may change the context: from there on the jobs are like another one."""
        template: Given | None = None
        context = None
        for place, given in _placed(arguments):
            if template is None or carried() != context:
                context, job = deepcopy(carried()), self._job(place, given)
                template = Given(place, job, row_of(job))
                yield template, template.row["args"] or ""
            else:
                yield template, self._args(place, given)

    def _args(self, place: str, given: Mapping[str, Any]) -> str:
        try:
            args = coded(self._cls.__magik__, given)
        except EnqueueError as error:
            raise at(place, error) from None
        return (row_of(self._job(place, given))["args"] or "") if args is None else self._sealed(args)

    def _job(self, place: str, given: Mapping[str, Any]) -> Job:
        if not all(isinstance(name, str) for name in given):
            raise refused(place, "has a name that is no text")
        for name in sorted(given.keys() & OPTIONS):
            raise refused(place, f"has {name}, which is said for all: bulk_enqueue(…, {name}=…)")
        try:
            return self._cls(**given, **self._options)
        except EnqueueError as error:
            raise at(place, error) from None


def insert_alike(connection: Connection, template: Given, rows: list[str], wake: bool) -> int:
    """Insert a chunk; how many there are now."""
    ask_for_moments(connection, [template])
    return insert(connection, INSERT_ALIKE, parameters_alike(template.row, rows, uuid7.several(len(rows))), wake)


def _built_by_us(cls: type[Job]) -> bool:
    """Whether no class between this one and `Job` has a constructor, and nobody is told of objects that are made.

    SQLAlchemy puts a constructor of its own around each, and is told itself.
    """
    made = cls.__init__
    while (inner := getattr(made, "_sa_original_init", None)) is not None:
        made = inner
    told = manager_of_class(cls).dispatch.init
    return made is manager_of_class(Job).original_init and all(each.__module__ in SQLALCHEMY for each in told)


def _placed(arguments: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for position, given in enumerate(iterated(arguments, "arguments")):
        place = f"arguments[{position}]"
        if not isinstance(given, Mapping):
            raise refused(place, f"is a {type(given).__name__} and no mapping of arguments")
        yield place, given
