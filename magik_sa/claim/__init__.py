"""Claim: session advisory locks, taken one row at a time, then the truth read again.

Nothing is written to the job table by a claim, and nothing has to be cleaned up after a crash: a lock lives as
long as the session that holds it. The shape follows Que (Chris Hanks) in taking advisory locks in the order of
the index; it streams instead of recursing from row to row.

`walk` and `marks` find and lock, `reread` tells what is still due, `notes` and `locks` are kept until the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any
from uuid import UUID

import psycopg

from ..names import Names
from .claimed import INTERRUPTED, Batch, Busy, Claimed, Owner, keys_of
from .locks import LockLost, Locks
from .marks import FULL_EVERY
from .notes import Notes
from .reread import reread
from .walk import Walks

__all__ = ["INTERRUPTED", "Batch", "Busy", "Claimed", "Claims", "LockLost", "Owner", "keys_of"]

Connection = psycopg.Connection[Any]


class Claims:
    """The verbs of claiming on one locking connection, for one life of it."""

    def __init__(
        self, connection: Connection, names: Names, owner: Owner, worker: str, full_every: float = FULL_EVERY
    ) -> None:
        self.connection, self.names, self.owner, self.worker = connection, names, owner, worker
        self.walks = Walks(connection, names, full_every)
        self.locks, self.notes = Locks(connection, names), Notes(connection, names, owner)

    def claim(self, queue: str, n: int, known: Collection[str], busy: Busy) -> Batch:
        """Take up to `n` due jobs of `queue`, none of them `busy` here."""
        ids = self.walks.walk(queue, n, known, busy.ids)
        return self.reread(ids, known, busy.keys) if ids else Batch([], [], [], 0)

    def reread(self, ids: Sequence[UUID], known: Collection[str], keys: Collection[int]) -> Batch:
        """Keep what is still due and live, note it, and unlock the rest."""
        found = reread(self.connection, self.names, ids, known, keys, self.owner, self.worker)
        self.notes.forget([job.id for job in found.twins])
        ours = {job.id for job in found.ours}
        self.locks.unlock([id for id in ids if id not in ours], keys_of(found.twins + found.touched))
        return Batch(found.ours, found.refused + found.twins, found.touched, len(ids))

    def release(self, jobs: Collection[Claimed]) -> None:
        """After a run's commit: delete the notes, then, in a statement of its own, unlock.

        In one statement the next holder could read the note of a run that has ended well, and count a failure.
        """
        self.notes.forget([job.id for job in jobs])
        self.locks.unlock([job.id for job in jobs], keys_of(jobs))

    def give_back(self, jobs: Collection[Claimed]) -> None:
        """Unlock jobs that were not begun. What an older note told of a run before is still to be told."""
        self.notes.forget([job.id for job in jobs if not (job.suspect or job.interrupted)])
        self.notes.not_begun([job.id for job in jobs if job.suspect])
        self.locks.unlock([job.id for job in jobs], keys_of(jobs))
        self.walks.step_back(jobs)

    def take_again(self, jobs: Collection[Claimed], before: Iterable[Owner]) -> set[UUID]:
        """After a reconnect: the jobs whose locks, keys and notes are ours again. Locks first, then notes.

        `before` are the sessions of ours that the notes may name. A job whose locks were free and that has no note goes
        on here, too: a crash of the server empties the notes. If somebody had it meanwhile and is done with it, the
        version of its row stops our run.
        """
        locked, keyed = self.locks.take_again([job.id for job in jobs], keys_of(jobs))
        free = [job.id for job in jobs if job.id in locked and job.key_lock in {None, *keyed}]
        ours = {id for owner in before for id in self.notes.take_over(free, owner)}
        ours |= self.notes.write_again([id for id in free if id not in ours], self.worker)
        self.locks.unlock(locked - ours, keyed - set(keys_of(job for job in jobs if job.id in ours)))
        return ours
