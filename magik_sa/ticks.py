"""Ticks: every worker tries, exactly one gets the row of a schedule, and adds its jobs in the same transaction.

There is no leader and no lease. Whether a tick is due, and what comes after it, is told by the database's clock alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from . import routing
from .errors import RunError
from .failure import sqlstate
from .forked import in_parent
from .job import Job
from .recording import AT_ONCE
from .timeout import Limits
from .timetable import AWAKE, MINE, Entry, mine, moment, sql
from .writing import connection_of

LONGEST: Final = timedelta(seconds=30)  # that an on_schedule may take, where its class has no timeout


class Tick(NamedTuple):
    """One that is due, or will be within a second: `at`, as it was seen at `now`, in seconds since 1970.

    As text, because it goes back to the server as it came: of a Decimal psycopg2 makes NaN where it is infinite, and
    what is made of a numeric at all the application may have decided.
    """

    entry: Entry
    at: str
    now: str

    @property
    def limit(self) -> timedelta:
        """How long its on_schedule may take: as long as one try of its jobs."""
        timeout = self.entry.cls.__magik__.retries.timeout
        assert not isinstance(timeout, str)
        return LONGEST if timeout is None else timeout

    @property
    def seconds(self) -> float:
        """How long until it is due, by the database's clock."""
        return float(Decimal(self.at) - Decimal(self.now))

    @property
    def moment(self) -> datetime:
        """The instant that it is."""
        return moment(self.at)

    def following(self) -> datetime:
        """The one after it. Strictly after now: however many were missed, this one makes up for all of them."""
        return self.entry.schedule.next(self.moment, moment(self.now))


class ScheduleFailed(Exception):
    """What a schedule raised is the `__cause__`. All that it did was rolled back, and its tick is still due."""


class Contended(Exception):
    """Another transaction came between, a serialization failure or a deadlock: its tick is still due."""


# ---- looking

# Rows that say what this process says: one that a newer release has changed is not for this one to run. A second
# ahead, because a look lasts so long: what is due later is seen by the next. What rests is not looked at.
LOOK: Final = f"""
SELECT s.name, CAST(extract(epoch FROM s.next_run_at) AS text) AS at, CAST(extract(epoch FROM now()) AS text) AS now
  FROM {{schedules}} s JOIN {MINE} USING (name, declaration)
 WHERE s.paused_at IS NULL AND s.next_run_at <= now() + interval '1 s' AND {AWAKE}
 ORDER BY s.next_run_at, s.name"""


def look(connection: Connection, entries: Mapping[str, Entry]) -> list[Tick]:
    """The ticks that are due now or within a second, the oldest first."""
    with connection.begin():
        return [Tick(entries[row.name], row.at, row.now) for row in connection.execute(sql(LOOK), mine(entries))]


# ---- one tick

# The tick is as it was seen, and may be fired.
DUE: Final = """CAST(extract(epoch FROM next_run_at) AS text) = :tick AND next_run_at <= now()
   AND paused_at IS NULL AND declaration = CAST(:declaration AS jsonb)"""

# The one statement that decides. `next_run_at = the tick that was seen` makes two workers mean the same tick: whoever
# comes second finds it moved. `:next > now()` refuses what was computed before this process was frozen for a while.
# SKIP LOCKED: where another worker is busy with this schedule, this one goes on to the next instead of waiting.
# `:note`: who was so slow that its try was taken for a dead worker's leaves the tick to whoever tries it now.
CLAIM = f"""
UPDATE {{schedules}}
   SET next_run_at = :next, last_run_at = now(), tried_at = NULL, deaths = 0, rests_until = NULL
 WHERE name = (
  SELECT name FROM {{schedules}}
   WHERE name = :name AND {DUE} AND :next > now() AND CAST(extract(epoch FROM tried_at) AS text) = :note
     FOR UPDATE SKIP LOCKED)"""


def fire(
    tick: Tick, note: str, sessions: scoped_session[Session], connection: Connection, limits: Limits
) -> int | None:
    """Claim this tick and add its jobs, both or neither. How many jobs; None where it is not ours (any more).

    `note` is that of our try of it (`tries`), which the claim takes back; else it stays, to be ended.

    Raises `ScheduleFailed` for whatever the schedule does, `Contended` where another transaction came between, and the
    driver's errors where the claim got no answer. The isolation level is the application's, for on_schedule's sake.

    A commit by on_schedule would keep the claim with the jobs so far and lose the others: it is refused, and all goes
    back. A rollback by it took the claim along: what it has added then would be added again at the next claim.
    """
    with _blamed(tick.entry):
        following = tick.following()
    told: dict[str, Any] = {"name": tick.entry.name, "tick": tick.at, "declaration": tick.entry.declaration}
    told |= {"next": following, "note": note}
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
    session = routing.opened(sessions, connection)
    try:
        yield session
    finally:
        routing.let_go(session)
        sessions.remove()
        connection.rollback()  # of what on_schedule has begun, or broken off, below its Session


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
    """Meanwhile nobody commits, neither the Session nor the Connection below it; savepoints may be released."""

    def refuse(session: Session) -> None:
        if not session.in_nested_transaction():
            raise _invalid(entry, "commits the transaction that holds its tick")

    def refuse_below(connection: Connection) -> None:
        connection.invalidate()  # SQLAlchemy takes the transaction for ended: only so it is, and goes back
        raise _invalid(entry, "commits the transaction that holds its tick")

    below = connection_of(session)
    event.listen(session, "before_commit", refuse)
    event.listen(below, "commit", refuse_below)
    try:
        yield
    finally:
        event.remove(below, "commit", refuse_below)
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
    added: list[Job] = []

    def add() -> None:
        for job in _jobs(entry, session):
            session.add(job)
            added.append(job)

    in_parent(add)
    session.flush()
    return len(added)


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
