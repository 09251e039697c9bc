"""Tries of a tick: each is noted, and the note committed, before its on_schedule runs.

The claim of a tick and what its on_schedule does are one transaction, of which nothing is left where it kills its
process. The note is left: whoever comes next counts a death. After the first the tick is tried again at once, since
somebody may just have killed that worker; from the second on it rests, a minute and up to an hour, by the database's
clock and for everybody. Whatever ends with its process alive takes its note back, and begins to count anew.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from .failure import sqlstate
from .job_session import read_committed
from .recording import AT_ONCE
from .ticks import DUE, Tick
from .timetable import AWAKE, Entry, sql


class Try(NamedTuple):
    """What came of wanting a tick. `note` is what its claim has to name; None where it begins a rest instead."""

    note: str | None
    deaths: int  # of workers in the middle of it, one after the other
    rest: float | None  # seconds

    @property
    def interrupted(self) -> bool:
        """Whether the last death has just been counted, which is done once."""
        return self.note is None or self.deaths == 1


HELD: Final = "55P03"  # lock_not_available

# Patient only where the next death begins a rest.
CLAIMED_AFTER: Final = "CASE WHEN deaths < 1 THEN interval '500 ms' ELSE interval '2 s' END"

# As the claim finds its row: the tick that was seen, and where another worker is busy with it, that is its own. What
# makes it decline is asked before the row is locked: the claim of whoever has just noted his try would walk past a row
# that somebody else had locked only to decline it.
# A note is a dead worker's if nobody holds the row. For a moment it may also be one whose claim is about to lock it; a
# worker that takes longer finds another note than its own, and leaves the tick to that. What is noted in the future
# was so before a clock was set back, or by hand. The sum has a limit: somebody may have written any number. Its commit
# waits for no disk: a note that is lost when the server crashes is one of a worker that did not die of its tick.
TRY: Final = f"""
UPDATE {{schedules}} s
   SET deaths = CASE WHEN tried_at IS NULL THEN deaths ELSE least(deaths, 999) + 1 END,
       tried_at = CASE WHEN tried_at IS NULL OR deaths < 1 THEN now() END,
       rests_until = CASE WHEN tried_at IS NOT NULL AND deaths >= 1
                          THEN now() + least(interval '1 min' * power(2, least(deaths, 7) - 1), interval '1 h') END
 WHERE name = (
  SELECT name FROM {{schedules}}
   WHERE name = :name AND {DUE} AND {AWAKE}
     AND (tried_at IS NULL OR tried_at NOT BETWEEN now() - {CLAIMED_AFTER} AND now() + interval '1 min')
     FOR UPDATE SKIP LOCKED)
RETURNING CAST(extract(epoch FROM tried_at) AS text) AS note, CAST(deaths AS text) AS deaths,
          CAST(extract(epoch FROM rests_until - now()) AS text) AS rest,
          set_config('synchronous_commit', 'off', true)"""

# Whoever holds the row holds it for a moment, as a rule: he is waited for, since a note that is left is a death.
PATIENT: Final = "SET LOCAL lock_timeout = '300ms'"
END: Final = """
UPDATE {schedules} SET tried_at = NULL, deaths = 0, rests_until = NULL
 WHERE name = :name AND CAST(extract(epoch FROM tried_at) AS text) = :note"""


def begin(tick: Tick, connection: Connection) -> Try | None:
    """Note, in a transaction of its own, that this tick is being tried; None where it is not ours to try now."""
    told = {"name": tick.entry.name, "tick": tick.at, "declaration": tick.entry.declaration}
    try:
        with connection.begin():
            row = connection.execute(sql(TRY), told).one_or_none()
    except DBAPIError as error:
        if sqlstate(error) in AT_ONCE:  # above READ COMMITTED: another one comes first
            return None
        raise
    return None if row is None else Try(row.note, int(row.deaths), None if row.rest is None else float(row.rest))


def end(entry: Entry, note: str, connection: Connection) -> bool:
    """Take back the note of a try that ended without its tick: its process lives. A claim takes its own back.

    False where somebody holds the row for longer: it is there still.
    """
    try:
        with read_committed(connection):
            connection.execute(text(PATIENT))
            connection.execute(sql(END), {"name": entry.name, "note": note})
    except DBAPIError as error:
        if sqlstate(error) == HELD:
            return False
        raise
    return True
