"""What an act or a list did not meet, and what stands in the way of what it did: said so that nobody has to guess."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ..acting import STATES, Filter, Left, Seen, drawn, names
from ..asking import Asking, Unanswered
from ..errors import MagikError
from ..harmless import harmless
from ..meant import near
from ..status.at_work import runners
from ..status.questions import PAUSED
from .status import paused_told

NONE: Final = "No such jobs."
GONE: Final = Left("gone")
UNSAID: Final = (MagikError, Unanswered, DBAPIError)  # what was done is done, and told whether or not this can be


@dataclass(frozen=True)
class Unmet:
    """Where nothing matched: the jobs that are chosen but for their states, and what was probably meant."""

    others: Counter[str] = field(default_factory=Counter)
    more: bool = False
    meant: str = ""

    @property
    def counts(self) -> str:
        """As in: 5 ready, 1 expired."""
        return ", ".join(f"{n:,}{'+' if self.more else ''} {state}" for state, n in self.others.most_common())

    def said(self, states: Collection[str] = ()) -> str:
        """A sentence or two; `states` are those that can be asked for."""
        if not self.others:
            return f"{NONE}{self.meant}"
        askable = " ".join(f"--state {state}" for state in self.others if state in states)
        hint = f" If these are meant: {askable}." if askable else ""
        return f"None in a state for it; left as they are: {self.counts}.{hint}"


def unmet(connection: Connection, wanted: Filter, limit: int) -> Unmet:
    """Ask for the others; up to `limit` are counted."""
    with connection.begin():
        found = drawn(connection, replace(wanted, states=STATES, unfailed=False), limit + 1)
        others = Counter(_state(job, wanted) for job in found[:limit])
        return Unmet(others, len(found) > limit, "" if found else _meant(connection, wanted))


def _state(job: Seen, wanted: Filter) -> str:
    """A scheduled one that is spared because it has failed is `errored` to whoever wants it."""
    return "errored" if wanted.unfailed and job.state in wanted.states else job.state


def _meant(connection: Connection, wanted: Filter) -> str:
    """Which class or queue no job has, and what looks like it."""
    told, (classes, queues) = "", names(connection)
    for kind, name, known in (("class", wanted.job_class, classes), ("queue", wanted.queue, queues)):
        if name is not None and name not in known and not _had(connection, kind, name):
            told += f" No job has the {kind} {harmless(repr(name) + near(name, known))}"
    return told


def _had(connection: Connection, kind: str, name: str) -> bool:
    """Whether any row has it, a finished one or one among very many, or it takes too long to tell."""
    asked = Filter(states=STATES, job_class=name) if kind == "class" else Filter(states=STATES, queue=name)
    try:
        return bool(drawn(connection, asked, 1))
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        return True


def gone(connection: Connection, ids: Iterable[UUID], seen: Sequence[Seen]) -> dict[UUID, Left]:
    """Those of the ids that were named and that no job has."""
    met = {job.id for job in seen}
    if not (missing := [each for each in ids if each not in met]):
        return {}
    with connection.begin():
        there = {job.id for job in drawn(connection, Filter(ids=missing), len(missing))}
    return {each: GONE for each in missing if each not in there}


def going_on(connection: Connection, ran: Sequence[UUID]) -> list[str]:
    """The workers in which these go on."""
    with suppress(*UNSAID):
        return sorted(runners(Asking(connection), ran)) if ran else []
    return []


def paused(connection: Connection, queues: Collection[str]) -> dict[str, str]:
    """Which of these queues are paused, and how that is told: by whom, and since when."""
    with suppress(*UNSAID):
        rows = Asking(connection).ask(PAUSED)
        return {row.name: paused_told(row.paused_by, row.paused_at) for row in rows if row.name in queues}
    return {}
