"""While a Session waits for the server's word on its commit, an interrupt of its thread waits too.

The statement is cancelled, and the server says whether it has committed; upon that the thread raises the interrupt
itself. Earlier, its run would not know which version of its row it left, and could not record its own end.
"""

from __future__ import annotations

import threading

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction, scoped_session, sessionmaker

from .interrupts import Interrupt, wait_for_fire

_committing: set[int] = set()  # threads whose Session waits for the server's word on a commit
_due: set[int] = set()  # and those of them whose time was up meanwhile


def follow(sessions: scoped_session[Session] | sessionmaker[Session]) -> None:
    """Know of the commits of this factory's Sessions. Once a factory, after the fence's own `follow`."""
    event.listen(sessions, "before_commit", _begin)
    event.listen(sessions, "after_transaction_end", _end)


def under_way(thread: int) -> bool:
    """Whether that thread commits just now."""
    return thread in _committing


def put_off(thread: int) -> None:
    """Its time is up: have it interrupt itself after the commit."""
    _due.add(thread)


def forget(thread: int) -> None:
    """Nothing of what it was told is left."""
    _committing.discard(thread)
    _due.discard(thread)


def _begin(session: Session) -> None:
    """Called for the release of a savepoint too.

    What is still to be written is written first, and no part of the commit: if it fails there is none, and a job that
    catches that goes on.
    """
    if not session.in_nested_transaction():
        session.flush()
        _committing.add(threading.get_ident())
        wait_for_fire()


def _end(session: Session, transaction: SessionTransaction) -> None:
    """After the commit, or the rollback where it failed. Called for savepoints and flushes too.

    One of those can fail within a commit where a listener has written once more: then all is rolled back.
    """
    if transaction.parent is not None and (root := session.get_transaction()) and root.is_active:
        return
    _committing.discard(threading.get_ident())
    wait_for_fire()
    if threading.get_ident() in _due:
        _due.discard(threading.get_ident())
        raise Interrupt


COMMITS = (_begin,)  # what of this module is told of a commit
