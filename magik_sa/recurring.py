"""Ticks: every worker tries, exactly one gets the row of a schedule, and adds its jobs in the same transaction.

There is no leader and no lease. Whether a tick is due, and what comes after it, is told by the database's clock alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from . import routing
from .ending import AT_ONCE
from .errors import EnqueueError, RunError
from .failure import sqlstate
from .forked import child_ends
from .job import Job
from .schedule import Schedule
from .storable import text as storable
from .timeout import Limits
from .timetable import MINE, Entry, mine, moment, sql
from .writing import connection_of, session_of

LONGEST: Final = timedelta(seconds=30)  # that an on_schedule may take, where its class has no timeout


class Tick(NamedTuple):
    """One that is due, or will be within a second: `at`, as it was seen at `now`, in seconds since 1970.

    As text, because it goes back to the server as it came: of a Decimal psycopg2 makes NaN where it is infinite.
    """

    entry: Entry
    at: str
    now: Decimal

    @property
    def limit(self) -> timedelta:
        """How long its on_schedule may take: as long as one try of its jobs."""
        timeout = self.entry.cls.__magik__.retries.timeout
        assert not isinstance(timeout, str)
        return LONGEST if timeout is None else timeout

    @property
    def seconds(self) -> float:
        """How long until it is due, by the database's clock."""
        return float(Decimal(self.at) - self.now)

    @property
    def moment(self) -> datetime:
        """The instant that it is."""
        return moment(Decimal(self.at))

    def following(self) -> datetime:
        """The one after it. Strictly after now: however many were missed, this one makes up for all of them."""
        return self.entry.schedule.next(self.moment, moment(self.now))


class ScheduleFailed(Exception):
    """What a schedule raised is the `__cause__`. All that it did was rolled back, and its tick is still due."""


class Contended(Exception):
    """Another transaction came between, a serialization failure or a deadlock: its tick is still due."""


# ---- looking

# Rows that say what this process says: one that a newer release has changed is not for this one to run. A second
# ahead, because a look lasts so long: what is due later is seen by the next.
LOOK: Final = f"""
SELECT s.name, CAST(extract(epoch FROM s.next_run_at) AS text) AS at, extract(epoch FROM now()) AS now
  FROM {{schedules}} s JOIN {MINE} USING (name, declaration)
 WHERE s.paused_at IS NULL AND s.next_run_at <= now() + interval '1 s'
 ORDER BY s.next_run_at, s.name"""


def look(connection: Connection, entries: Mapping[str, Entry]) -> list[Tick]:
    """The ticks that are due now or within a second, the oldest first."""
    with connection.begin():
        return [Tick(entries[row.name], row.at, row.now) for row in connection.execute(sql(LOOK), mine(entries))]


# ---- one tick

# The one statement that decides. `next_run_at = the tick that was seen` makes two workers mean the same tick: whoever
# comes second finds it moved. `:next > now()` refuses what was computed before this process was frozen for a while.
# SKIP LOCKED: where another worker is busy with this schedule, this one goes on to the next instead of waiting.
CLAIM = """
UPDATE {schedules} SET next_run_at = :next, last_run_at = now()
 WHERE name = (SELECT name FROM {schedules} WHERE name = :name FOR UPDATE SKIP LOCKED)
   AND CAST(extract(epoch FROM next_run_at) AS text) = :tick AND next_run_at <= now()
   AND :next > now()
   AND paused_at IS NULL AND declaration = CAST(:declaration AS jsonb)"""


def fire(tick: Tick, sessions: scoped_session[Session], connection: Connection, limits: Limits) -> int | None:
    """Claim this tick and add its jobs, both or neither. How many jobs; None where it is not ours (any more).

    Raises `ScheduleFailed` for whatever the schedule does, `Contended` where another transaction came between, and the
    driver's errors where the claim got no answer. The isolation level is the application's, for on_schedule's sake.

    A commit by on_schedule would keep the claim with the jobs so far and lose the others: it is refused, and all goes
    back. A rollback by it took the claim along: what it has added then would be added again at the next claim.
    """
    with _blamed(tick.entry):
        following = tick.following()
    told = {"name": tick.entry.name, "tick": tick.at, "next": following, "declaration": tick.entry.declaration}
    with _contention(tick.entry), _session(sessions, connection) as session:
        if connection_of(session).execute(sql(CLAIM), told).rowcount != 1:
            return None
        with _blamed(tick.entry):
            claim = session.get_transaction()
            with _held(tick.entry, session):
                count = limits.within(tick.limit, partial(_add, tick.entry, session), connection)
            if session.get_transaction() is not claim:
                raise _invalid(tick.entry, "has ended the transaction that holds its tick")
            session.commit()
            return count


@contextmanager
def _session(sessions: scoped_session[Session], connection: Connection) -> Iterator[Session]:
    try:
        yield routing.opened(sessions, connection)
    finally:
        sessions.remove()


@contextmanager
def _contention(entry: Entry) -> Iterator[None]:
    """Above READ COMMITTED a claim that comes second gets an error, too, and not just no row."""
    try:
        yield
    except (ScheduleFailed, DBAPIError) as error:
        fault = error.__cause__ if isinstance(error, ScheduleFailed) else error
        if fault is not None and sqlstate(fault) in AT_ONCE:
            raise Contended(entry.name) from fault
        raise


@contextmanager
def _held(entry: Entry, session: Session) -> Iterator[None]:
    """Meanwhile nobody commits; savepoints may be released."""

    def refuse(session: Session) -> None:
        if not session.in_nested_transaction():
            raise _invalid(entry, "commits the transaction that holds its tick")

    event.listen(session, "before_commit", refuse)
    try:
        yield
    finally:
        event.remove(session, "before_commit", refuse)


@contextmanager
def _blamed(entry: Entry) -> Iterator[None]:
    """A schedule may raise anything, SystemExit included, and it is its own failure."""
    try:
        yield
    except BaseException as error:
        raise ScheduleFailed(entry.name) from error


def _add(entry: Entry, session: Session) -> int:
    """Add what on_schedule yields. A repeat of a live job's key is passed over by the flush, as ever."""
    count = 0
    with child_ends():
        for job in _jobs(entry, session):
            session.add(job)
            count += 1
    session.flush()
    return count


def _jobs(entry: Entry, session: Session) -> Iterator[Job]:
    given: Any = entry.cls.on_schedule(session, **entry.schedule.args)
    if not isinstance(given, Iterable):
        raise _invalid(entry, f"gave {_kind(given)}, and not jobs")
    for job in given:
        if not isinstance(job, Job):
            raise _invalid(entry, f"yielded {_kind(job)}, and not a job")
        yield job


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _invalid(entry: Entry, fault: str) -> RunError:
    return RunError("MAGIK_ON_SCHEDULE_INVALID", f"on_schedule of {entry.name} {fault}.", field="on_schedule")


# ---- by hand

PAUSE: Final = """
UPDATE {schedules} SET paused_at = now(), paused_by = :by WHERE name = :name AND paused_at IS NULL"""

PAUSED: Final = """
SELECT extract(epoch FROM next_run_at) AS at, extract(epoch FROM now()) AS now, declaration
  FROM {schedules} WHERE name = :name AND paused_at IS NOT NULL FOR UPDATE"""

RESUME: Final = """
UPDATE {schedules} SET paused_at = NULL, paused_by = NULL, next_run_at = coalesce(:next, next_run_at)
 WHERE name = :name"""


NAMES: Final = "SELECT name FROM {schedules} ORDER BY name"


def pause(connection: Connection | Session | scoped_session[Session], name: str, by: str) -> bool:
    """Let no tick of this schedule fire from the caller's commit on. False where it is paused already.

    `by` is who wants it so, text of 1 to 255 bytes. Raises `EnqueueError` ``MAGIK_SCHEDULE_UNKNOWN`` for a name that no
    schedule has, and ``MAGIK_ARGS_INVALID`` for what is no text.
    """
    own, told = _writing(connection), {"name": storable(name, "name"), "by": storable(by, "by")}
    return _one(own.execute(sql(PAUSE), told)) or _known(own, name)


def resume(connection: Connection | Session | scoped_session[Session], name: str) -> bool:
    """Let its ticks fire again from the caller's commit on. False where it is not paused. Raises as `pause` does.

    What came due before now was left out on purpose and is not made up for: the next tick is the first after now.
    """
    own = _writing(connection)
    row = own.execute(sql(PAUSED), {"name": storable(name, "name")}).one_or_none()
    if row is None:
        return _known(own, name)
    following = Schedule(**row.declaration).next(moment(row.at), moment(row.now)) if row.at <= row.now else None
    return _one(own.execute(sql(RESUME), {"name": name, "next": following}))


def _writing(given: Connection | Session | scoped_session[Session]) -> Connection:
    """The schedules are where the jobs are, whatever else a Session reads and writes."""
    return given if isinstance(given, Connection) else connection_of(session_of(given))


def _known(connection: Connection, name: str) -> Literal[False]:
    """There is one of this name, with which there was nothing to do."""
    names = list(connection.execute(sql(NAMES)).scalars())
    if name in names:
        return False
    near = " or ".join(map(repr, get_close_matches(name, names, 3)))
    what = f"There is no schedule {name!r}{f'; did you mean {near}?' if near else '.'}"
    raise EnqueueError("MAGIK_SCHEDULE_UNKNOWN", what, field="name")


def _one(result: Any) -> bool:
    return bool(result.rowcount == 1)
