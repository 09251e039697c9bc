"""A statement that one thread waits for, ended by another: cancelled on the server, or its socket shut.

Nothing here waits for the network in the caller's thread. A cancel names the session it is meant for, so one that
arrives late can only reach that session: whoever cancels gives the connection up afterwards.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from typing import Any

import psycopg
from psycopg.pq import PollingStatus, TransactionStatus
from psycopg.pq.abc import PGcancelConn
from sqlalchemy import Connection

from .failure import headline
from .logs import say

CANCEL_WITHIN = 2.0  # seconds that a cancel may take to be delivered


def running(connection: Connection) -> Any:
    """The DBAPI connection, if it waits for a statement's answer just now; None otherwise.

    The private attribute, because the public one of that name would connect anew, here, where it is gone.
    """
    fairy = connection._dbapi_connection
    driver: Any = fairy.dbapi_connection if fairy is not None else None
    busy = driver is not None and driver.info.transaction_status == TransactionStatus.ACTIVE
    return driver if busy else None


def can_be_cancelled(driver: Any) -> bool:
    """Whether its driver can send a cancel without a risk: psycopg on libpq 17 or newer.

    psycopg2, and psycopg on an older libpq, wait for the server's answer without end and with Python's lock in hand: a
    server that does not answer stops the whole process.
    """
    return isinstance(driver, psycopg.Connection) and psycopg.capabilities.has_cancel_safe()


def cancel(driver: psycopg.Connection[Any]) -> None:
    """Ask the server to end what runs on this connection, in a thread that may wait for the network."""
    handle = driver.pgconn.cancel_conn()  # here: later, the thread that waits may be closing the connection
    threading.Thread(target=_deliver, args=(handle,), name="magik-cancel", daemon=True).start()


def hang_up(driver: Any) -> None:
    """Shut the socket: the thread that waits fails as with a lost connection. The server notices within a second."""
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(driver.fileno())) as line:
        if not driver.closed:  # so the number was still its own
            line.shutdown(socket.SHUT_RDWR)


def _deliver(handle: PGcancelConn) -> None:
    try:
        _within_bound(handle)
    except Exception as error:
        say(logging.INFO, "cancel_not_delivered", error=headline(error))


def _within_bound(handle: PGcancelConn) -> None:
    end = time.monotonic() + CANCEL_WITHIN
    handle.start()
    waits = {PollingStatus.READING: select.POLLIN, PollingStatus.WRITING: select.POLLOUT}
    while (state := handle.poll()) in waits:
        look = select.poll()  # select() knows no more than 1,024 descriptors
        look.register(handle.socket, waits[PollingStatus(state)])
        if not look.poll(max(0.0, end - time.monotonic()) * 1000):
            raise TimeoutError(f"no answer within {CANCEL_WITHIN:g} s")
    if state == PollingStatus.FAILED:
        raise psycopg.OperationalError(handle.get_error_message())
