"""What a process that a job forked may have of the worker: nothing.

It inherits every socket. What it sends on one reaches the parent's session; one that it merely keeps open keeps that
session alive when the worker is killed, with its locks and its open transaction. So in the child something harmless
takes the sockets' place, and the engine of the jobs gets a pool of its own there.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from sqlalchemy import Engine

_connections: weakref.WeakSet[Any] = weakref.WeakSet()
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def keep_from_children(connection: Any) -> None:
    """A forked child must not speak on this DBAPI connection, nor keep it open."""
    _connections.add(connection)


def renew_in_children(engine: Engine) -> None:
    """A forked child may use this engine: it makes connections of its own there."""
    _engines.add(engine)


def in_parent(work: Callable[[], object]) -> None:
    """Do `work`. A child that was forked in it and comes out ends here: it is not another thread of the worker.

    Were it to go on, it would end the job a second time. `sys.exit` in the child gives the exit code, as usual.
    """
    parent = os.getpid()
    try:
        work()
    except BaseException as error:
        if os.getpid() != parent:
            _end(error)
        raise
    if os.getpid() != parent:
        _end(None)


def _end(error: BaseException | None) -> NoReturn:
    code: object = error.code if isinstance(error, SystemExit) else 1 if error is not None else 0
    if error is not None and not isinstance(error, SystemExit):
        traceback.print_exception(error)
    elif code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


def _let_go_in_child() -> None:
    """dup2 and not close(): closing through the driver would say good-bye on the parent's session."""
    null = os.open(os.devnull, os.O_RDWR)
    for connection in list(_connections):
        if not connection.closed:
            os.dup2(null, connection.fileno())
    os.close(null)
    for engine in list(_engines):
        engine.dispose(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
