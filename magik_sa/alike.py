"""Many jobs of one class, out of their arguments: rows of text, of which no object is made first.

All that they have beside their arguments is the same, and is taken from a job that is built of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.orm import class_mapper
from sqlalchemy.orm.instrumentation import manager_of_class

from .attribute import coded
from .carried import carried, is_carried
from .chunk import Given, ask_for_moments, at, insert, is_full, iterated, refused
from .columns import delay_of
from .errors import EnqueueError
from .job import OPTIONS, Job, declared
from .sealed import SealedText
from .storable import invalid
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
        no_key = self._cls.__magik__.idempotent_by is None
        return one_time and no_key and not own_table and _built_by_us(self._cls)

    def built(self, arguments: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Job]]:
        """One by one as jobs, each with its place."""
        for position, given in enumerate(iterated(arguments, "arguments")):
            yield _place(position), self._job(position, given)

    def rows(self, arguments: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Given, list[str]]]:
        """The JSON of a chunk's arguments, with the job that was built of the first, chunk by chunk.

        What the arguments come from may change the context: from there on the jobs are like another one.
        """
        template, context, rows, size = None, None, list[str](), 0
        for position, given in enumerate(iterated(arguments, "arguments")):
            if template is None or not is_carried(context):
                if template is not None and rows:
                    yield template, rows
                rows, size = [], 0
                context, template = deepcopy(carried()), self._template(position, given)
                args = template.row["args"] or ""
            else:
                args = self._args(position, given)
            rows.append(args)
            size += len(args)
            if is_full(len(rows), size):
                yield template, rows
                rows, size = [], 0
        if template is not None and rows:
            yield template, rows

    def _template(self, position: int, given: Mapping[str, Any]) -> Given:
        job = self._job(position, given)
        return Given(_place(position), job, row_of(job))

    def _args(self, position: int, given: Any) -> str:
        try:
            args = coded(self._cls.__magik__, given) if isinstance(given, Mapping) else None
        except EnqueueError as error:
            raise at(_place(position), error) from None
        return (self._template(position, given).row["args"] or "") if args is None else self._sealed(args)

    def _job(self, position: int, given: Mapping[str, Any]) -> Job:
        if not isinstance(given, Mapping):
            raise refused(_place(position), f"is a {type(given).__name__} and no mapping of arguments")
        if not all(isinstance(name, str) for name in given):
            raise refused(_place(position), "has a name that is no text")
        for name in sorted(given.keys() & OPTIONS):
            raise refused(_place(position), f"has {name}, which is said for all: bulk_enqueue(…, {name}=…)")
        try:
            if "self" in given:  # which Python would take for another thing
                raise invalid("self", f"{self._cls.__magik__.name} has no such argument")
            return self._cls(**given, **self._options)
        except EnqueueError as error:
            raise at(_place(position), error) from None


def _place(position: int) -> str:
    return f"arguments[{position}]"


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
