"""The way between a worker and the server: whether sessions last on it, and how soon a silent end is noticed."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from ipaddress import ip_address
from typing import Any, Final

import psycopg

from .. import server
from ..asking import Unanswered
from ..database import refuse_pooler
from ..errors import BootError
from ..failure import first_line
from .finding import Finding, Severity, Subject

# Made by a session as a worker's: what the system did not take reads as 0. Who we are to the server, to compare with
# who we are here.
IN_FORCE: Final = """
SELECT current_setting('tcp_keepalives_idle')::int, current_setting('tcp_keepalives_interval')::int,
       current_setting('tcp_keepalives_count')::int, host(inet_client_addr()), inet_client_port()"""

LOCAL: Final = "a local socket: its end is noticed at once"
UNTAKEN: Final = "unknown, as the server's system takes no keepalive settings"
UNTAKEN_CAUSE: Final = (
    "A worker whose host is cut off keeps its locks for as long as that system likes: often two hours."
)
UNTAKEN_REMEDY: Final = "Set TCP's keepalives to 5, 2 and 3 seconds in the system that the server runs on."
BETWEEN: Final = (
    "The two ends see different addresses: a proxy, a pooler or a translation of addresses is between them."
)
DIRECTLY: Final = "What ends connections itself has a bound of its own: give workers a direct way with --locking-url."


def pooler(subject: Subject) -> Finding:
    """Whether a session is a session on the way that the locks go."""
    try:
        refuse_pooler(subject.locking)
    except BootError as error:
        cause = (
            "Locks are held by sessions: where one is lent to others in between, they guard nothing. Workers refuse it."
        )
        return Finding(
            "pooler", Severity.CRITICAL, error.what.rstrip("."), {"sessions_last": False}, cause, error.remedy
        )
    except psycopg.Error as error:
        raise Unanswered(first_line(error)) from error
    return Finding("pooler", Severity.OK, "sessions last", {"sessions_last": True})


def silence(subject: Subject) -> Finding:
    """In how many seconds a locking connection that has gone silent is noticed, by the settings in force on one."""
    try:
        with closing(_connect(subject.locking)) as connection:
            connection.execute(server.settings_sql(server.BOTH).encode())
            idle, interval, count, address, port = connection.execute(IN_FORCE).fetchall()[0]
            connection.rollback()  # of the settings as well: the session may be a pooler's
            direct = address is None or _own_address(connection.fileno()) == (ip_address(address), port)
    except psycopg.Error as error:
        raise Unanswered(first_line(error)) from error
    if address is None:
        return Finding("silence", Severity.OK, LOCAL, {"seconds": 0, "direct": True})
    return _bound(idle + interval * count, direct=direct)


def _connect(locking: str) -> psycopg.Connection[Any]:
    return psycopg.connect(locking, prepare_threshold=None, **server.CLIENT)


def _bound(seconds: int, *, direct: bool) -> Finding:
    measured = {"seconds": seconds or None, "statement_seconds": server.SILENT_AFTER, "direct": direct}
    if not seconds:
        return Finding("silence", Severity.WARNING, UNTAKEN, measured, UNTAKEN_CAUSE, UNTAKEN_REMEDY)
    said = (
        f"the server frees a silent worker's locks within {seconds} s; a worker gives a statement up after"
        f" {server.SILENT_AFTER} s without an answer"
    )
    if not direct:
        return Finding(
            "silence", Severity.NOTE, f"{said}, if nothing between them answers", measured, BETWEEN, DIRECTLY
        )
    return Finding("silence", Severity.OK, said, measured)


def _own_address(fileno: int) -> tuple[Any, int]:
    with socket.socket(fileno=os.dup(fileno)) as line:
        address, port, *_ = line.getsockname()
    return ip_address(address.partition("%")[0]), port
