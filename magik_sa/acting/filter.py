"""Which jobs are meant: by class, queue, state, age, arguments, or by their ids. Needs no job class.

What is given travels as parameters. Of an SQL statement only the fragments that stand here are put together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from ..duration import advice, duration
from ..errors import DeclarationError, EnqueueError
from .states import ORDINARY, STATES, no_state

# A number or a boolean is compared as JSON writes it. The cast says which of two operators is meant: ->> takes a
# position in a list, too.
EQUAL: Final = "args ->> (:name{n})::text = (:value{n})::text"
UNFAILED: Final = "error_count <= 0"
OLDER: Final = "{since} <= statement_timestamp() - make_interval(secs => :older)"
YOUNGER: Final = "{since} > statement_timestamp() - make_interval(secs => :younger)"


@dataclass(frozen=True)
class Filter:
    """Jobs for which all that is given holds. Of several states one has to.

    `errored`: live, and has failed at least once; the other states exclude each other. A job is as old as what it is:
    expired or finished for so long, and for a live one, enqueued so long ago. Ages are text ("1h30m") or `timedelta`.
    `arguments` are compared as text: ``{"tenant_id": "7", "dry": "true"}``. `unfailed`: never failed. Raises
    `EnqueueError` ``MAGIK_FILTER_INVALID`` naming what is no filter.
    """

    states: Sequence[str] = ()
    job_class: str | None = None
    queue: str | None = None
    older_than: str | timedelta | None = None
    younger_than: str | timedelta | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    ids: Sequence[UUID] = ()
    unfailed: bool = False

    def __post_init__(self) -> None:
        for state in self.states:
            if state not in STATES:
                raise _invalid("state", no_state(str(state)))
        for name, value in (("class", self.job_class), ("queue", self.queue), *self._words()):
            _check_word(name, value)
        for name, age in (("older_than", self.older_than), ("younger_than", self.younger_than)):
            _seconds(name, age)
        if not all(isinstance(each, UUID) for each in self.ids):
            raise _invalid("ids", "are UUIDs")

    def _words(self) -> Iterator[tuple[str, object]]:
        for name, value in self.arguments.items():
            if not isinstance(value, str):
                raise _invalid("arguments", "are compared as text: give text")
            yield from (("arguments", name), ("arguments", value))

    @property
    def open(self) -> bool:
        """Whether nothing at all is given, so that every job is meant."""
        alone = (self.job_class, self.queue, self.older_than, self.younger_than)
        return all(each is None for each in alone) and not (self.states or self.ids or self.arguments)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The states that are meant: those named, or with ids any, else all but the finished."""
        return tuple(self.states) or (STATES if self.ids else ORDINARY)

    def conditions(self, since: str) -> list[str]:
        """As SQL; `since` is the column by which a job is as old as it is."""
        given = (("job_class", "job_class = :job_class"), ("queue", "queue = :queue"))
        ages = (("older_than", OLDER), ("younger_than", YOUNGER))
        return [
            *(sql for name, sql in given if getattr(self, name) is not None),
            *(sql.format(since=since) for name, sql in ages if getattr(self, name) is not None),
            *(EQUAL.format(n=n) for n, _ in enumerate(self.arguments)),
            *(UNFAILED for _ in range(self.unfailed)),
        ]

    def parameters(self) -> dict[str, Any]:
        """What its conditions are asked with."""
        values: dict[str, Any] = {"states": list(self.wanted), "job_class": self.job_class, "queue": self.queue}
        values["older"] = _seconds("older_than", self.older_than)
        values["younger"] = _seconds("younger_than", self.younger_than)
        values["ids"] = [str(each) for each in self.ids]
        for n, (name, value) in enumerate(self.arguments.items()):
            values |= {f"name{n}": name, f"value{n}": value}
        return values


def _check_word(name: str, value: object) -> None:
    """Text as Postgres can hold it. What it is stays untold: it may be an argument that is nobody's business."""
    if value is None:
        return
    if not isinstance(value, str) or "\0" in value:
        raise _invalid(name, "is text without NUL")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _invalid(name, "is text in UTF-8") from None


def _seconds(name: str, age: str | timedelta | None) -> float | None:
    try:
        return None if age is None else duration(age, field=name, zero=True).total_seconds()
    except DeclarationError as error:
        what = f"{name}={age!r}: {advice(error)}."
        raise EnqueueError("MAGIK_FILTER_INVALID", what, field=name) from None


def _invalid(name: str, why: str) -> EnqueueError:
    return EnqueueError("MAGIK_FILTER_INVALID", f"{name}: {why}{'' if why.endswith(('.', '?')) else '.'}", field=name)
